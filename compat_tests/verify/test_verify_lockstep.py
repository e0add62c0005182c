"""How `verify` compares two sides in lockstep: it judges each step by itself."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.support import recordings
from estimator_bridge.recording.files import (
    ACTIVATIONS,
    GRADIENTS,
    LOSS,
    VARIABLES,
    RecordedStep,
    Recording,
    RecordingWriter,
)
from estimator_bridge.verification.compare import network_rounding, steps
from estimator_bridge.verification.compare.arithmetic import lookups, rounded, update_rules
from estimator_bridge.verification.compare.paired_steps import joined_step
from estimator_bridge.verification.explain import causes
from estimator_bridge.verification.perturbation import perturbed
from estimator_bridge.verification.result import Result
from tf2_engine import optimizers

ROWS, DIMENSION, BATCH = 40, 4, 64
COMMON = {"weight_decay_factor": 0.01, "clip_gradient_max": 0.4, "clip_weight_min": -0.6}
SETTINGS: dict[str, dict[str, Any]] = {
    "AdagradMomentum": {"momentum": 0.9, "beta2": 0.99, "use_nesterov": True},
    "FTRL": {"l1_regularization_strength": 0.05, "l2_regularization_strength": 0.01},
    "Momentum": {"momentum": 0.9},
    "RMSProp": {"momentum": 0.5},
    "ProximalAdagrad": {"l1_regularization_strength": 0.01},
    "ProximalYogi": {"l1_regularization_strength": 0.01},
    "FrequencyEstimator": {
        "tau": 0.1,
        "max_delta": 50.0,
        "outlier_threshold": 2.0,
        "weight_exponent": 1.0,
    },
}


def optimizer_of(kind: str) -> Any:
    """Returns an optimizer with settings that affect its update rule."""
    rate: Any = (lambda: 7.0) if kind == "FrequencyEstimator" else 0.05
    common = {} if kind == "FrequencyEstimator" else COMMON
    return getattr(optimizers, kind)(learning_rate=rate, **common, **SETTINGS.get(kind, {}))


def settings_of(optimizer: Any) -> dict[str, Any]:
    return {field.name: getattr(optimizer, field.name) for field in dataclasses.fields(optimizer)}


def test_every_optimizer_has_a_rule() -> None:
    """`verify` judges the steps of all optimizers but MDLAdagradLight, whose rule is not public."""
    assert {*update_rules.RULES} == {*optimizers.OPTIMIZERS} - {"MDLAdagradLight"}


@pytest.mark.parametrize("kind", update_rules.RULES)
@pytest.mark.filterwarnings("ignore:.*inferred")
def test_float32_stays_within_the_bounds_of_a_rule(kind: str) -> None:
    """The engine's results are within the error bounds, which are a few roundings wide."""
    from tf2_engine.backends.host.update import new_rows

    optimizer, draw = optimizer_of(kind), np.random.default_rng(3)
    w, g = (draw.normal(scale=0.1, size=(500, 1)).astype(np.float32) for _ in range(2))
    slots = {
        name: np.abs(draw.normal(scale=0.3, size=(500, 1))).astype(np.float32)
        for name in optimizer.slot_names
    }
    if kind == "FrequencyEstimator":
        w, slots = np.abs(w) * 300, {"last_hit_step": np.round(slots["last_hit_step"] * 10)}
    if kind == "CenteredRMSProp":  # The mean of squares is no less than the square of the mean.
        slots["ms"] = slots["ms"] + slots["mg"] ** 2
    rate = 7.0 if kind == "FrequencyEstimator" else 0.05
    old = {
        "parameters": tf.constant(w),
        **{name: tf.constant(slot) for name, slot in slots.items()},
    }
    actual = new_rows(optimizer, old, tf.constant(g), tf.constant(rate, tf.float32))
    new_w, new_slots = update_rules.updated(
        update_rules.RULES[kind],
        rounded.rounded(w),
        {name: rounded.rounded(slot) for name, slot in slots.items()},
        rounded.rounded(g),
        rounded.rounded(float(np.float32(rate))),
        settings_of(optimizer),
    )
    for name, bounded in {"parameters": new_w, **new_slots}.items():
        off = np.abs(actual[name].numpy().astype(np.float64) - bounded.value)
        np.testing.assert_array_less(off, bounded.error + 1e-37)
        scale = np.abs(bounded.value) + (np.abs(w) if name == "parameters" else np.abs(slots[name]))
        assert np.median(bounded.error / scale) < 40 * rounded.UNIT_ROUNDOFF


@pytest.mark.parametrize("lost", [[], [0], [1], [0, 2], [0, 1, 2]], ids=str)
def test_a_core_without_recorded_gradients_has_zeros(lost: list[int]) -> None:
    """Gradients that reach no table are not recorded; the samples of that core get zeros."""
    names = ["word", "word (core 1)", "word (core 2)"]
    activations = dict.fromkeys(names, np.ones([2, 3], np.float32))
    sent = {name: np.full([2, 3], core + 1, np.float32) for core, name in enumerate(names)}
    kept = {name: sent[name] for core, name in enumerate(names) if core not in lost}
    dense = {"kernel": np.ones([5, 1], np.float32)}

    joined = joined_step(
        RecordedStep(1, {ACTIVATIONS: activations, GRADIENTS: {**kept, **dense}})
    ).values

    expected = [0 if core in lost else core + 1 for core in range(3)]
    if kept:
        np.testing.assert_array_equal(joined[GRADIENTS]["word"][:, 0], np.repeat(expected, 2))
    assert joined[GRADIENTS].keys() == {*dense, *(["word"] if kept else [])}
    assert joined[ACTIVATIONS]["word"].shape == (6, 3)


@pytest.mark.parametrize("order", ["as they come", "backwards", "in pairs"])
def test_sums_stay_within_their_bounds(order: str) -> None:
    """Float32 sums in any order are within the bounds, which account for cancellation."""
    draw = np.random.default_rng(0)
    terms = draw.normal(size=(4000, 1)).astype(np.float32)
    _, sums = lookups.sums_by(np.zeros(4000, int), rounded.rounded(terms))
    ordered = terms[:, 0] if order != "backwards" else terms[::-1, 0]
    total = np.sum(ordered) if order == "in pairs" else np.cumsum(ordered, dtype=np.float32)[-1]
    assert abs(float(total) - sums.value[0, 0]) <= sums.error[0, 0]
    assert sums.error[0, 0] < 0.1 * len(terms) * rounded.UNIT_ROUNDOFF * np.abs(terms).sum()


@pytest.mark.parametrize("repeated", [1, 2, 32768])
def test_equal_terms_may_all_round_one_way(repeated: int) -> None:
    """The bounds hold even if all terms of a sum are equal, and are tight if they are not."""
    draw = np.random.default_rng(0)
    distinct = draw.random((32768 // repeated, 1)).astype(np.float32)
    terms = np.tile(distinct, (repeated, 1))
    _, sums = lookups.sums_by(np.zeros(len(terms), int), rounded.rounded(terms))
    total = float(np.cumsum(terms[:, 0], dtype=np.float32)[-1])
    assert abs(total - sums.value[0, 0]) <= sums.error[0, 0]
    roundings = sums.error[0, 0] / sums.value[0, 0] / rounded.UNIT_ROUNDOFF
    assert (roundings < 10 * np.sqrt(len(terms))) == (repeated < len(terms))


def test_what_is_beyond_a_limit_is_as_exact_as_the_limit() -> None:
    """The error of a clipped number is as large as the limits let the number vary."""
    x = rounded.Rounded(
        np.array([5.0, -5.0, 0.9, 0.1, 1.2, 3.0]), np.array([1, 1, 0.3, 0.3, 0.5, np.inf])
    )

    clipped = rounded.clip(x, -1.0, 1.0)

    np.testing.assert_array_equal(clipped.value, [1.0, -1.0, 0.9, 0.1, 1.0, 1.0])
    np.testing.assert_allclose(clipped.error, [0.0, 0.0, 0.3, 0.3, 0.3, 2.0], atol=1e-15)
    limit = rounded.Rounded(np.array(1.0), np.array(0.01))
    assert rounded.clip(x, None, limit).error[0] == pytest.approx(0.01)


@pytest.mark.parametrize("by_chance", [4e-13, -4e-13, 0.0])
def test_an_element_that_is_rounding_may_be_small_by_chance(by_chance: float) -> None:
    """The bound of an element that is only rounding comes from its movement in other steps."""
    of_array, draw = network_rounding.Noise(has_jumps=False), np.random.default_rng(0)
    for step in range(20):
        cancelled = by_chance if step == 7 else 1e-10 * draw.normal()
        values = np.array([1e-2, cancelled, 3e-17])
        moved = np.array([1e-9, 0.0 if step == 7 else 2e-10, 1e-23])
        of_array.add(values, moved)

    levels = of_array.level(np.array([1e-2, by_chance, 3e-17]))

    assert levels[1] == 2e-10
    assert levels[2] == 1e-23


def test_perturbed_arrays_are_so_many_floats_apart() -> None:
    """Every element moves by the given number of floats; zeros stay, and results repeat."""
    values = np.array([1.0, -2.5, 0.0, 3e-9, np.inf, 7e30], np.float32)
    moved = perturbed("kernel", values, 16)
    apart = np.abs(moved.view(np.int32).astype(np.int64) - values.view(np.int32))
    assert apart.tolist() == [16, 16, 0, 16, 0, 16]
    np.testing.assert_array_equal(moved, perturbed("kernel", values, 16))
    assert not np.array_equal(
        perturbed("a", np.ones(50, np.float32), 1), perturbed("b", np.ones(50, np.float32), 1)
    )


def test_a_large_element_hides_no_small_one() -> None:
    """The effect of changed bits is measured separately for each order of magnitude."""
    measure = network_rounding.Noise(has_jumps=False)
    values = np.array([2e9] + [1e-3] * 50)
    measure.add(values, np.array([400.0] + [1e-9] * 50))
    np.testing.assert_allclose(measure.level(values), [400.0] + [1e-9] * 50)


@pytest.mark.parametrize("mean", [0.2, 3.0, 100.0])
def test_counts_of_one_mean_are_not_told_apart(mean: float) -> None:
    """Two counts of rare events are alike if one mean explains both, and not if it doubles."""
    draw = np.random.default_rng(7)
    pairs = draw.poisson(mean, (20_000, 2)).tolist()
    assert not any(steps.is_more(ours, theirs) for ours, theirs in pairs)
    assert steps.is_more(200, 100)
    assert steps.is_more(21, 0)


class Training:
    """Both sides of an Adagrad training in float32 numpy; side B starts from side A's states.

    Args:
        rate: the learning rate of side A.
        scale: the scale of the gradients.
        least: the smallest weight; weights are up to 1 above it.
    """

    def __init__(
        self, rate: float = 0.05, steps: int = 8, scale: float = 1e-2, least: float = -0.5
    ) -> None:
        self.rate, self.steps, self._scale = np.float32(rate), steps, scale
        draw = np.random.default_rng(5)
        self._start = (least + draw.random(size=(ROWS, DIMENSION))).astype(np.float32)
        self._ids = draw.integers(0, ROWS - 4, (steps, BATCH))
        self._gradients = (scale * draw.normal(size=(steps, BATCH, DIMENSION))).astype(np.float32)

    def record(
        self,
        place: pathlib.Path,
        fault: Callable[..., Any] | None = None,
        written: Mapping[str, Callable[[Any], Any]] = MappingProxyType({}),
    ) -> Recording:
        """Writes the recording of a side.

        Args:
            fault: changes rows and slots of a step, given its number.
            written: for a group, computes the written array from the correct one.
        """
        rule = {
            "kind": "Adagrad",
            "settings": settings_of(optimizers.Adagrad()) | {"slot_variable_creation_fn": None},
            "rates": [float(self.rate)] * self.steps,
            "multipliers": [],
        }
        table = {**recordings.SETTINGS["tables"][0], "combiner": None, "rule": rule}
        writer = RecordingWriter(place)
        writer.note("settings", {**recordings.SETTINGS, "tables": [table]})
        writer.note("follows", True)
        w, a = self._start, np.full_like(self._start, 0.1)
        writer.step(0, {VARIABLES: self._variables(w, a)})
        number = writer.input(0)
        for step in range(self.steps):
            writer.batch(recordings.batch(*self._ids[step]), number)
            g, activation = self._gradients[step], w[self._ids[step]]
            following = self._updated(w, a, step, self.rate)
            result = following if fault is None else fault(self, step, w, a, following)
            values = {
                VARIABLES: self._variables(*result),
                ACTIVATIONS: {"word": written.get(ACTIVATIONS, np.asarray)(activation)},
                GRADIENTS: {"word": written.get(GRADIENTS, np.asarray)(g)},
                LOSS: {"loss": np.float32(0.5)},
            }
            writer.step(step + 1, values)
            w, a = following
        return Recording(place)

    def _updated(self, w: Any, a: Any, step: int, rate: Any) -> tuple[Any, Any]:
        total = np.zeros_like(w)
        np.add.at(total, self._ids[step], self._gradients[step])
        a = a + total * total
        return w - np.float32(rate) * total / np.sqrt(a), a

    def with_rate(self, factor: float, first: int = 0, last: int = 99) -> Callable[..., Any]:
        """Returns the fault of another rate in some steps."""

        def fault(_: Any, step: int, w: Any, a: Any, right: Any) -> Any:
            rate = self.rate * np.float32(factor)
            return self._updated(w, a, step, rate) if first <= step <= last else right

        return fault

    @staticmethod
    def _variables(w: Any, a: Any) -> dict[str, Any]:
        return {"words": w, "words/Adagrad": a, "global_step": np.int64(0)}


def one_row(_: Any, step: int, w: Any, a: Any, right: Any) -> Any:
    """Moves a row that never occurs by one float in one step."""
    rows = right[0].copy()
    if step == 3:
        rows[ROWS - 1, 2] = np.nextafter(rows[ROWS - 1, 2], np.float32(9))
    return rows, right[1]


def frozen(_: Any, step: int, w: Any, a: Any, right: Any) -> Any:
    """Leaves a table and its slot unchanged."""
    return w, a


def frozen_row(training: Training, step: int, w: Any, a: Any, right: Any) -> Any:
    """Leaves one occurring row unchanged."""
    rows, row = right[0].copy(), training._ids[step][0]
    rows[row] = w[row]
    return rows, right[1]


def rounded_otherwise(_: Any, step: int, w: Any, a: Any, right: Any) -> Any:
    """Moves values by one float, alternately up and down, which is rounding and no fault."""
    limits = np.where(np.arange(right[0].size) % 2, -9, 9).reshape(w.shape).astype(np.float32)
    return np.where(right[0] == w, w, np.nextafter(right[0], limits)), right[1]


def scattered(_: Any, step: int, w: Any, a: Any, right: Any) -> Any:
    """Moves values to places that no setting explains."""
    places = np.random.default_rng(step).uniform(-0.5, 0.5, w.shape).astype(np.float32)
    return np.where(right[0] == w, w, places), right[1]


FAULTS: dict[str, tuple[Callable[[Training], Any], int, str]] = {
    "rate": (lambda training: training.with_rate(1.001), 1, "learning rate"),
    "late rate": (lambda training: training.with_rate(1.02, 5), 6, "learning rate"),
    "one step": (lambda training: training.with_rate(1.02, 6, 6), 7, "learning rate"),
    "frozen": (lambda _: frozen, 1, "no update"),
    "a row that does not occur": (lambda _: one_row, 4, ""),
    "frozen row": (lambda _: frozen_row, 1, ""),
}


def judged(tmp_path: pathlib.Path, training: Training, fault: Any) -> Result:
    """Records both sides, compares and explains."""
    a, b = training.record(tmp_path / "a"), training.record(tmp_path / "b", fault)
    return recordings.explained(a, b)


@pytest.mark.parametrize("name", FAULTS)
def test_an_update_gone_wrong_is_found_in_its_step(name: str, tmp_path: pathlib.Path) -> None:
    """Side B's result of each step is judged regardless of earlier steps, and is not rounding."""
    fault, step, cause = FAULTS[name]
    training = Training()
    result = judged(tmp_path, training, fault(training))

    assert not result.equal
    assert (result.first.first.step, result.first.table) == (step, recordings.TABLE), str(result)
    assert not cause or cause in {one.name for one in result.causes}, str(result)
    assert causes.are_conclusive(result)


OTHER_SHAPES: dict[str, Callable[[Any], Any]] = {
    "fewer samples": lambda g: g[: BATCH // 2],
    "more samples": lambda g: np.concatenate([g, g]),
    "narrower": lambda g: g[:, :-1],
    "flat": np.ravel,
    "empty": lambda g: g[:0],
    "a number": np.sum,
}


@pytest.mark.parametrize("side", ["A", "B"])
@pytest.mark.parametrize("group", [ACTIVATIONS, GRADIENTS])
@pytest.mark.parametrize("name", OTHER_SHAPES)
def test_an_array_of_another_shape_is_the_difference(
    name: str, group: str, side: str, tmp_path: pathlib.Path
) -> None:
    """This holds on either side; the correct rows are judged without the array."""
    training, written = Training(), {side: {group: OTHER_SHAPES[name]}}
    a, b = (training.record(tmp_path / one, written=written.get(one, {})) for one in "AB")
    result = recordings.explained(a, b)

    assert not result.equal
    assert [one.group for one in result.series if one.first is not None] == [group]


def test_what_is_too_small_for_an_element_shows_in_all(tmp_path: pathlib.Path) -> None:
    """A rate wrong by a thousandth is seen although no element differs by three floats."""
    training = Training(rate=1e-4, steps=30, scale=3e-2, least=4.0)
    result = judged(tmp_path, training, training.with_rate(1.01))

    assert "side B moves 1.0" in result.first.first.note, str(result)
    assert "learning rate" in {one.name for one in result.causes}


def test_rounding_is_no_fault_and_power_is_told(tmp_path: pathlib.Path) -> None:
    """One float up or down is equal, and the report says which difference would have been seen."""
    result = judged(tmp_path, Training(), rounded_otherwise)

    assert result.equal, str(result)
    table = next(one for one in result.series if one.role == "table")
    assert 0 < table.visible < 1e-3
    assert table.rows_decided == table.rows_moved == ROWS - 4
    assert "would be seen" in str(result)


def test_what_moves_by_roundings_is_undecided(tmp_path: pathlib.Path) -> None:
    """If side A moves by less than the tolerance, the verdict is undecided instead of equal."""
    result = judged(tmp_path, Training(rate=3e-8, steps=1, least=1.0), None)

    assert result.undecided
    assert not result.equal
    assert "UNDECIDED" in str(result)
    assert result.first is None
