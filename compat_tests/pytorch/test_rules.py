"""The map of rules: rules called equal are equal, and others differ by the stated cause."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from compat_tests.pytorch import library_runs
from compat_tests.pytorch.library_runs import Step
from compat_tests.pytorch.settings_of_rules import SETTINGS
from compat_tests.references import optimizers as references
from compat_tests.references import tolerance
from estimator_bridge.settings import torch_rules
from estimator_bridge.settings.torch_rules import LIBRARIES, RULES, TorchRule

pytestmark = pytest.mark.full

STEPS = 50
ROWS, DIM = 7, 4  # FBGEMM wants a multiple of 4 columns.
FIRST = np.linspace(-1.0, 1.0, ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM)

Update = Callable[..., Any]


def _cases() -> Iterator[Any]:
    """Yields every counterpart that has a name, with all settings that it fits."""
    for optimizer, by_library in RULES.items():
        for library in LIBRARIES:
            for number, rule in enumerate(by_library[library]):
                for n, settings in enumerate(SETTINGS.get(optimizer, ())):
                    if rule.name and rule.fits(settings) and _is_meant(rule, settings, optimizer):
                        name = f"{optimizer}-{library}-{rule.name}-{number}-{n}"
                        yield pytest.param(optimizer, library, rule, settings, id=name)


def _is_meant(rule: TorchRule, settings: Mapping[str, Any], optimizer: str) -> bool:
    """Whether a difference can show: without an epsilon, it does not matter where it is added."""
    return not rule.cause or settings.get("epsilon", 1.0) > 0.0


CASES = list(_cases())
EQUAL = [case for case in CASES if not case.values[2].cause]
# Without an epsilon, rows that have had no gradient become NaN where all rows are updated.
OTHER_ROWS = [
    case for case in EQUAL if not case.values[2].rows and case.values[3].get("epsilon", 1.0) != 0.0
]
DIFFERENT = [case for case in CASES if case.values[2].cause]


def expected(
    optimizer: str,
    settings: Mapping[str, Any],
    steps: Sequence[Step],
    *,
    all_rows: bool = False,
    update: Update | None = None,
) -> tuple[Any, float]:
    """Trains in float64; returns the table and the largest magnitude of it and its slots.

    Args:
        all_rows: whether every step updates all rows.
        update: replaces the update rule of the optimizer.
    """
    rule = references.OPTIMIZERS[optimizer]
    known = {("beta_2" if key == "beta2" else key): each for key, each in settings.items()}
    held = {name: np.full([ROWS, DIM], each) for name, each in rule.initial_slots(known).items()}
    known = {key: known[key] for key in rule.keys}
    all_rows = all_rows or settings.get("lazy_adam") is False
    w = FIRST.astype(np.float64)
    largest = 1.0
    for rows, gradients, rate in steps:
        dense = np.zeros([ROWS, DIM])
        dense[rows] = gradients
        updated = np.arange(ROWS) if all_rows else rows
        before = {name: slot[updated] for name, slot in held.items()}
        w[updated], after = (update or rule.update)(w[updated], before, dense[updated], rate, known)
        for name, slot in after.items():
            held[name][updated] = slot
        largest = max(largest, *(np.abs(each).max() for each in (w, *held.values())))
    return w, largest


def _sparse_forms(library: str, rule: TorchRule) -> tuple[bool, ...]:
    if library != "torch.optim" or rule.name == "SparseAdam":
        return (library == "torch.optim",)
    return (False, True) if rule.rows and rule.name in ("SGD", "Adagrad") else (False,)


def _skip_where_it_cannot_run(rule: TorchRule) -> None:
    if not rule.tested and not torch.cuda.is_available():
        pytest.skip("FBGEMM has this optimizer on GPUs only")


def test_every_counterpart_is_tried() -> None:
    named = {
        id(rule)
        for by_library in RULES.values()
        for rules in by_library.values()
        for rule in rules
        if rule.name
    }
    assert named == {id(case.values[2]) for case in CASES}


@pytest.mark.parametrize("optimizer, library, rule, settings", EQUAL)
def test_what_is_called_equal_is_equal(
    optimizer: str, library: str, rule: TorchRule, settings: Mapping[str, Any]
) -> None:
    """After 50 steps all weights are those of the float64 reference, apart from rounding."""
    _skip_where_it_cannot_run(rule)
    steps = library_runs.steps_of(
        ROWS, DIM, STEPS, whole=not rule.rows, constant="constant" in rule.note
    )
    want, scale = expected(optimizer, settings, steps)
    for sparse in _sparse_forms(library, rule):
        got = library_runs.run(library, rule, settings, FIRST, steps, sparse=sparse)
        # A row occurs twice in a batch.
        tolerance.assert_close(
            want, got, n_terms=2, steps=STEPS, where=f"{optimizer}, {library}", scale=scale
        )


@pytest.mark.parametrize("optimizer, library, rule, settings", OTHER_ROWS)
def test_rows_outside_of_the_batch_make_the_difference(
    optimizer: str, library: str, rule: TorchRule, settings: Mapping[str, Any]
) -> None:
    """With few rows in a batch, a library that treats all rows differs, by that alone."""
    steps = library_runs.steps_of(ROWS, DIM, STEPS, whole=False, constant="constant" in rule.note)
    want, scale = expected(optimizer, settings, steps)
    cause, _ = expected(optimizer, settings, steps, all_rows=True)

    got = library_runs.run(library, rule, settings, FIRST, steps)

    tolerance.assert_close(
        cause, got, n_terms=2, steps=STEPS, where=f"{optimizer}, {library}", scale=scale
    )
    assert _is_far(want, got, scale)


@pytest.mark.parametrize("optimizer, library, rule, settings", DIFFERENT)
def test_what_is_called_different_differs_by_its_cause(
    optimizer: str, library: str, rule: TorchRule, settings: Mapping[str, Any]
) -> None:
    """A reference with the stated cause gives the library's numbers, and ours does not."""
    whole = not rule.rows
    steps = library_runs.steps_of(ROWS, DIM, STEPS, whole=whole, constant=True)
    want, scale = expected(optimizer, settings, steps)
    update = VARIANTS[rule.cause](library, rule.name, references.OPTIMIZERS[optimizer].update)
    all_rows = library == "optax" or rule.name == "Adam"
    explained, _ = expected(optimizer, settings, steps, all_rows=all_rows, update=update)

    for sparse in _sparse_forms(library, rule)[:1]:
        got = library_runs.run(library, rule, settings, FIRST, steps, sparse=sparse)
        tolerance.assert_close(
            explained, got, n_terms=2, steps=STEPS, where=f"{optimizer}, {library}", scale=scale
        )
        assert _is_far(want, got, scale)


def _is_far(want: Any, got: Any, scale: float) -> bool:
    """Whether the difference is more than rounding can explain on both sides together."""
    return bool(np.max(np.abs(want - got)) > 2 * tolerance.allowed(2, STEPS, scale))


# --- Our rules with one thing changed ---------------------------------------------------------


def _epsilon_outside(library: str, name: str, update: Update) -> Update:
    def adam(w: Any, slots: Any, g: Any, lr: float, settings: Any) -> Any:
        return update(w, slots, g, lr, {**settings, "sum_inside_sqrt": False})

    def rms_prop(w: Any, slots: Any, g: Any, lr: float, settings: Any) -> Any:
        rho, mu = settings["rho"], settings["momentum"]
        ms = rho * slots["ms"] + (1 - rho) * g * g
        new = {"ms": ms}
        variance = ms
        if "mg" in slots:
            new["mg"] = rho * slots["mg"] + (1 - rho) * g
            variance = ms - new["mg"] ** 2
        new["mom"] = mu * slots["mom"] + lr * g / (np.sqrt(variance) + settings["epsilon"])
        return w - new["mom"], new

    return rms_prop if name == "RMSprop" else adam


def _row_wise(library: str, name: str, update: Update) -> Update:
    def adagrad(w: Any, slots: Any, g: Any, lr: float, settings: Any) -> Any:
        a = slots["accumulators"] + np.mean(g * g, axis=1, keepdims=True)
        return w - lr * g / np.sqrt(a), {"accumulators": a}

    return adagrad


def _corrected(library: str, name: str, update: Update) -> Update:
    steps = itertools.count(1)  # of the table: rows outside of the batch count theirs, too

    def adam(w: Any, slots: Any, g: Any, lr: float, settings: Any) -> Any:
        t = next(steps)
        _, new = update(w, slots, g, lr, settings)
        first, second = 1 - settings["beta_1"] ** t, 1 - settings["beta_2"] ** t
        m, v, epsilon = new["momenta"] / first, new["velocities"] / second, settings["epsilon"]
        if name == "SparseAdam":  # which adds epsilon before it corrects the root
            divisor = np.sqrt(v) + epsilon / np.sqrt(second)
        elif settings["sum_inside_sqrt"]:
            divisor = np.sqrt(v + epsilon * epsilon)
        else:
            divisor = np.sqrt(v) + epsilon
        return w - lr * m / divisor, new

    return adam


VARIANTS = {
    torch_rules.EPSILON_OUTSIDE: _epsilon_outside,
    torch_rules.ROW_WISE: _row_wise,
    torch_rules.CORRECTED: _corrected,
}
