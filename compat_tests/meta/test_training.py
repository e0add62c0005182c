"""Checks the reference's training of a table against batches worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

from compat_tests.meta.test_optimizers import ADAM, FTRL
from compat_tests.references.inputs import sparse
from compat_tests.references.lookup import combine
from compat_tests.references.training import Contribution, ReferenceTable, contributions

ADAGRAD = {"initial_accumulator_value": 0.0}


def sgd_table(initial: list[float], **common: Any) -> ReferenceTable:
    return ReferenceTable([[value] for value in initial], "SGD", {}, common)


def feed(
    table: ReferenceTable,
    lr: float,
    *terms: tuple[int, int, float],
    num_cores: int = 1,
    **layout: Any,
) -> None:
    """Applies one batch given as (core, row, gradient) of gain 1, one cell each."""
    grads: dict[tuple[int, int], list[list[float]]] = {}
    batch = []
    for core, row, g in terms:
        cells = grads.setdefault((core, 0), [])
        batch.append(Contribution(core, 0, len(cells), row, 1.0))
        cells.append([g])
    table.apply(batch, grads, lr, num_cores=num_cores, **layout)


def test_the_whole_global_batch_is_one_sum() -> None:
    """Gradients of a row add up over samples, features and cores into one Adagrad step.

    Row 0 gets 1 + 2 (core 0, feature 0), -4 (core 0, feature 1) and 4 (core 1): 3 in all.
    a = 9, w = 1 - 0.5 * 3 / 3 = 0.5. Steps one by one would have left a = 1 + 4 + 16 + 16.
    Row 1 does not occur and keeps its weight and slot.
    """
    table = ReferenceTable([[1.0], [1.0]], "Adagrad", ADAGRAD)

    table.apply(
        [
            Contribution(1, 0, 0, 0, 1.0),
            Contribution(0, 0, 0, 0, 1.0),
            Contribution(0, 0, 1, 0, 1.0),
            Contribution(0, 1, 0, 0, 1.0),
        ],
        {(0, 0): [[1.0], [2.0]], (0, 1): [[-4.0]], (1, 0): [[4.0]]},
        0.5,
        num_cores=2,
    )

    np.testing.assert_array_equal(table.weights, [[0.5], [1.0]])
    np.testing.assert_array_equal(table.slots["accumulators"], [[9.0], [0.0]])
    assert table.updates_of_row.tolist() == [1, 0]


def test_gradients_are_multiplied_by_their_gain() -> None:
    """A looked-up row receives gain times the gradient of its cell, duplicates added.

    Cell 0 is the mean of id 0 (weight 1) and id 1 twice (weights 1 and 2): gains 1/4, 1/4, 1/2.
    Its gradient is [4, 8]. Row 0 gets [1, 2], row 1 gets [3, 6]; lr is 1.
    """
    table = ReferenceTable(np.zeros((3, 2)), "SGD", {})
    occurrences = sparse([[0, 0], [0, 1], [0, 2]], [0, 1, 1], [1.0, 1.0, 2.0])
    _, gains = combine(table.weights, occurrences, 1, "mean")

    table.apply(contributions(0, 0, occurrences, gains), {(0, 0): [[4.0, 8.0]]}, 1.0)

    np.testing.assert_array_equal(table.weights, [[-1, -2], [-3, -6], [0, 0]])


class Case(NamedTuple):
    """A batch of (core, row, gradient), and the weights and slots after it."""

    kind: str
    common: Mapping[str, Any]
    initial: list[float]
    lr: float
    terms: list[tuple[int, int, float]]
    weights: list[float]
    slots: Mapping[str, list[float]] = MappingProxyType({})


SETTINGS: dict[str, Mapping[str, Any]] = {
    "SGD": {},
    "Adagrad": ADAGRAD,
    "FTRL": {**FTRL, "initial_accumulator_value": 9.0},
}
BY_RATE = "multiply_weight_decay_factor_by_learning_rate"
PER_CORE = {"use_gradient_accumulation": False}
SUMS = [(0, 0, 3.0), (0, 0, 3.0), (0, 1, -8.0), (0, 1, 2.0)]
REPEATED = [(0, 0, 1.0), (0, 0, 2.0), (0, 1, -5.0)]
APART = [(0, 0, 4.0), (0, 1, -3.0)]
LIMITS = {"clip_weight_min": -0.5, "clip_weight_max": 1.5}
CASES = {
    # Row 0 gets 3 + 3 = 6, row 1 gets -8 + 2 = -6. Clipped term by term, row 0 would not be
    # clipped at 4 and row 1 would be -5 + 2 = -3.
    "sum clipped above": Case("SGD", {"clip_gradient_max": 4.0}, [0, 0], 1.0, SUMS, [-4, 6]),
    "sum clipped below": Case("SGD", {"clip_gradient_min": -5.0}, [0, 0], 1.0, SUMS, [-6, 5]),
    "sum clipped on both sides": Case(
        "SGD", {"clip_gradient_min": -5.0, "clip_gradient_max": 4.0}, [0, 0], 1.0, SUMS, [-4, 5]
    ),
    # Adagrad accumulates the square of the clipped gradient: 2^2, not 6^2.
    "slot of a clipped gradient": Case(
        *("Adagrad", {"clip_gradient_max": 2.0}, [1], 0.5, [(0, 0, 6.0)]),
        *([0.5], {"accumulators": [4]}),
    ),
    # 2 - 0.25 * 2 = 1.5; 1.5 - 0.5 * 1 = 1. Decayed after the update it would be 1.125. Row 1 is
    # not in the batch.
    "decay": Case("SGD", {"weight_decay_factor": 0.25}, [2, 2], 0.5, [(0, 0, 1.0)], [1, 2]),
    # 2 - 0.25 * 0.5 * 2 = 1.75; 1.75 - 0.5 * 1
    "decay times the rate": Case(
        "SGD", {"weight_decay_factor": 0.25, BY_RATE: True}, [2], 0.5, [(0, 0, 1.0)], [1.25]
    ),
    # w = 2 - 0.5 * 2 = 1; a = 9 + 16; z = 0 + 4 - (5 - 3) * 1 / 0.5 = 0, so w = 0. From the
    # undecayed weight z would be -4.
    "linear slot of a decayed weight": Case(
        "FTRL", {"weight_decay_factor": 0.5}, [2], 0.5, [(0, 0, 4.0)], [0], {"linears": [0]}
    ),
    # Row 0: 1 - 4 = -3. Row 1: 1 + 3 = 4. Row 2 is at 9, outside every limit, and not touched.
    "weight clipped below": Case(
        "SGD", {"clip_weight_min": -0.5}, [1, 1, 9], 1.0, APART, [-0.5, 4, 9]
    ),
    "weight clipped above": Case(
        "SGD", {"clip_weight_max": 1.5}, [1, 1, 9], 1.0, APART, [-3, 1.5, 9]
    ),
    "weight clipped on both sides": Case("SGD", LIMITS, [1, 1, 9], 1.0, APART, [-0.5, 1.5, 9]),
    "slot that no limit clips": Case(
        *("Adagrad", {"clip_weight_max": 0.25}, [1], 0.5, [(0, 0, 4.0)]),
        *([0.25], {"accumulators": [16]}),
    ),
    # Core 0: 4 - 2 = 2, 2 - 1 = 1, clipped to 0.5; core 1: 0.5 - 0.25 = 0.25, 0.25 - 0.125.
    "decay and limit of every core": Case(
        *("SGD", {**PER_CORE, "weight_decay_factor": 0.5, "clip_weight_max": 0.5}, [4], 1.0),
        *([(0, 0, 1.0), (1, 0, 0.125)], [0.125]),
    ),
    # On one core duplicates are summed with or without accumulation.
    "accumulated": Case("Adagrad", {}, [1, 2], 0.5, REPEATED, [0.5, 2.5]),
    "one core": Case("Adagrad", PER_CORE, [1, 2], 0.5, REPEATED, [0.5, 2.5]),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_limits_and_decay_by_hand(case: Case) -> None:
    """The sum is clipped, the weight decays, the rule is applied, and the weight is clipped."""
    initial = [[value] for value in case.initial]
    table = ReferenceTable(initial, case.kind, SETTINGS[case.kind], case.common)

    feed(table, case.lr, *case.terms, num_cores=1 + max(core for core, _, _ in case.terms))

    np.testing.assert_array_equal(table.weights[:, 0], case.weights)
    for name, expected in case.slots.items():
        np.testing.assert_array_equal(table.slots[name][:, 0], expected)


@pytest.mark.parametrize(
    "gain, grad", [(1.0, [[0.0]]), (1.0, None), (0.0, [[7.0]])], ids=["zeros", "none", "no gain"]
)
def test_a_zero_gradient_is_an_update(gain: float, grad: list[list[float]] | None) -> None:
    """A row with a gradient of zeros, none at all, or no weight decays and moves its slots.

    Lazy Adam: w = 2 - 0.5 * 2 = 1, m = 8 / 2 = 4, v = 12 * 0.75 = 9, w = 1 - 1.25 * 4 / 5 = 0.
    Row 1 has the same state, does not occur, and stays.
    """
    table = ReferenceTable(
        [[2.0], [2.0]],
        "Adam",
        ADAM,
        {"weight_decay_factor": 0.5},
        slots={"momenta": [[8.0], [8.0]], "velocities": [[12.0], [12.0]]},
    )

    table.apply([Contribution(0, 0, 0, 0, gain)], {(0, 0): grad}, 1.25)

    np.testing.assert_array_equal(table.weights, [[0.0], [2.0]])
    np.testing.assert_array_equal(table.slots["momenta"], [[4.0], [8.0]])
    np.testing.assert_array_equal(table.slots["velocities"], [[9.0], [12.0]])


def test_non_lazy_adam_updates_every_row() -> None:
    """Non-lazy Adam decays, updates and clips every row, by zeros where none occurred.

    Row 0 gets 6: w = 2 - 1 = 1, m = 3, v = 9, sqrt(9 + 16) = 5, w = 1 - 1.25 * 3 / 5 = 0.25.
    Row 1 gets 0 from m = 8, v = 12: w = 4 - 2 = 2, m = 4, v = 9, w = 2 - 1.25 * 4 / 5 = 1,
    clipped to 0.5.
    """
    table = ReferenceTable(
        [[2.0], [4.0]],
        "Adam",
        {**ADAM, "lazy_adam": False},
        {"weight_decay_factor": 0.5, "clip_weight_max": 0.5},
        slots={"momenta": [[0.0], [8.0]], "velocities": [[0.0], [12.0]]},
    )

    feed(table, 1.25, (0, 0, 6.0))

    np.testing.assert_array_equal(table.weights, [[0.25], [0.5]])
    np.testing.assert_array_equal(table.slots["momenta"], [[3.0], [4.0]])
    np.testing.assert_array_equal(table.slots["velocities"], [[9.0], [9.0]])
    assert (table.steps, table.updates, table.n_terms) == (1, 1, 1)


def test_colliding_ids_are_applied_core_by_core() -> None:
    """Without accumulation two cores give the numbers of TensorFlow's own two-core test.

    The case is TPUEstimatorGradientsWithIdCollisionTest in tensorflow/estimator: Adagrad at
    rate 0.12 from weights of 0 and accumulators of 0.1; two cores of two samples; every sample
    is the mean of two ids, and the gradients of the four activations are 3, 2, 1 and 0.

        core 0: ids 0 1 at 3 and ids 1 2 at 2       core 1: ids 1 2 at 1 and ids 2 3 at 0

    Halved by the mean and summed inside each core, id by id:

        id 0: core 0 1.5.                 a = 0.1 + 2.25 = 2.35
              w = -0.12 * 1.5 / sqrt(2.35) = -0.18 / 1.5329710 = -0.1174190
        id 1: core 0 1.5 + 1 = 2.5, core 1 0.5. Core 1 holds it, so 0.5 comes first:
              a = 0.1 + 0.25 = 0.35, then 6.6
              w = -0.06 / 0.5916080 - 0.3 / 2.5690465 = -0.1014185 - 0.1167748 = -0.2181933
        id 2: core 0 1, core 1 0.5 + 0. Core 0 holds it: a = 1.1, then 1.35
              w = -0.12 / 1.0488088 - 0.06 / 1.1618950 = -0.1144155 - 0.0516398 = -0.1660553
        id 3: core 1 0, so a stays 0.1 and w stays 0.

    In the other order id 1 would be -0.3 / sqrt(6.35) - 0.06 / sqrt(6.6) = -0.1424073.
    """
    start = {"initial_accumulator_value": 0.1}
    table = ReferenceTable(np.zeros((8, 3)), "Adagrad", start, PER_CORE)
    indices = [[0, 0], [0, 1], [1, 0], [1, 1]]
    batch = []
    for core, ids in enumerate([[0, 1, 1, 2], [1, 2, 2, 3]]):
        occurrences = sparse(indices, ids)
        _, gains = combine(table.weights, occurrences, 2, "mean")
        batch += contributions(core, 0, occurrences, gains)
    grads = {(0, 0): [[3.0] * 3, [2.0] * 3], (1, 0): [[1.0] * 3, [0.0] * 3]}

    table.apply(batch, grads, 0.12, num_cores=2)

    expected_w = [-0.1174190, -0.2181933, -0.1660553, 0, 0, 0, 0, 0]
    expected_a = [2.35, 6.6, 1.35, 0.1, 0.1, 0.1, 0.1, 0.1]
    for column in range(3):
        np.testing.assert_allclose(table.weights[:, column], expected_w, rtol=0, atol=1e-7)
        np.testing.assert_allclose(
            table.slots["accumulators"][:, column], expected_a, rtol=0, atol=1e-7
        )
    assert (table.steps, table.updates) == (1, 2)


def test_the_other_cores_follow_ascending() -> None:
    """Row 1 of three cores is updated by core 1, then 0, then 2.

    Adagrad from a = 0 at rate 1, gradients 4 (core 0), 3 (core 1), 12 (core 2):
    a = 9, 25, 169; w = -3 / 3 - 4 / 5 - 12 / 13.
    """
    table = ReferenceTable([[0.0], [0.0]], "Adagrad", ADAGRAD, PER_CORE)

    feed(table, 1.0, (2, 1, 12.0), (0, 1, 4.0), (1, 1, 3.0), num_cores=3)

    np.testing.assert_allclose(table.weights, [[0.0], [-1 - 0.8 - 12 / 13]], rtol=1e-14)


@pytest.mark.parametrize(("sharding", "first"), [("div", 3.0), ("mod", 4.0)])
def test_the_owner_depends_on_the_hosts(sharding: str, first: float) -> None:
    """Of two hosts with one core each, row 1 of four is on host 0 by "div", on 1 by "mod".

    Core 0 sends 3, core 1 sends 4; the first alone is divided by itself: w = -1 - second / 5.
    """
    table = ReferenceTable(np.zeros((4, 1)), "Adagrad", ADAGRAD, PER_CORE)

    layout = {"num_cores": 2, "cores_per_host": 1, "sharding": sharding}
    feed(table, 1.0, (0, 1, 3.0), (1, 1, 4.0), **layout)

    np.testing.assert_allclose(table.weights[1], [-1 - (7.0 - first) / 5], rtol=1e-14)


def test_batches_follow_each_other() -> None:
    """A second batch starts from the first one's weights and slots.

    a = 9, w = 1 - 0.5 * 3 / 3 = 0.5; a = 25, w = 0.5 - 0.25 * 4 / 5 = 0.3 at half the rate.
    """
    table = ReferenceTable([[1.0]], "Adagrad", ADAGRAD)

    feed(table, 0.5, (0, 0, 3.0))
    feed(table, 0.25, (0, 0, 4.0))

    np.testing.assert_allclose(table.weights, [[0.3]], rtol=1e-15)
    assert (table.steps, table.updates, table.n_terms) == (2, 2, 1)
    assert table.scales == {"weights": 1.0, "accumulators": 25.0}


def test_zero_over_zero_is_nan() -> None:
    """Adagrad from an accumulator of 0 turns a gradient of 0 into NaN, without a warning."""
    table = ReferenceTable([[1.0]], "Adagrad", ADAGRAD)

    feed(table, 0.5, (0, 0, 0.0))

    assert np.isnan(table.weights).all()


def test_settings_are_rounded_to_float32() -> None:
    """The proto's floats are float32: 1 - beta_2 is 0.99998...e-3, not 1e-3, unless told.

    float32(0.999) is 16760439 / 2^24, so 1 - beta_2 is 16777 / 2^24 = 0.00099998712539...
    """
    settings = {**ADAM, "beta_2": 0.999}
    for rounded, expected in [(True, 16777 / 2**24), (False, 1e-3)]:
        table = ReferenceTable([[1.0]], "Adam", settings, round_settings=rounded)
        feed(table, 0.5, (0, 0, 1.0))
        np.testing.assert_allclose(table.slots["velocities"], [[expected]], rtol=1e-12)


def test_what_was_handed_in_is_not_changed() -> None:
    """The initial table, slots and gradients are copied, never written."""
    initial, slots, grad = np.ones((2, 1)), {"accumulators": np.ones((2, 1))}, np.ones((1, 1))
    table = ReferenceTable(initial, "Adagrad", ADAGRAD, slots=slots)

    table.apply([Contribution(0, 0, 0, 0, 1.0)], {(0, 0): grad}, 0.5)

    assert initial.tolist() == slots["accumulators"].tolist() == [[1.0], [1.0]]
    assert grad.tolist() == [[1.0]]
    assert table.weights[0, 0] != 1.0


def test_what_needs_accumulation_is_refused_without_it() -> None:
    """Gradient clipping and non-lazy Adam are errors when accumulation is off."""
    with pytest.raises(ValueError, match="lazy_adam"):
        ReferenceTable([[1.0]], "Adam", {**ADAM, "lazy_adam": False}, PER_CORE)
    with pytest.raises(ValueError, match="Gradient clipping"):
        ReferenceTable([[1.0]], "SGD", {}, {**PER_CORE, "clip_gradient_max": 1.0})


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (Contribution(0, 0, 0, -1, 1.0), "row -1"),
        (Contribution(0, 0, 0, 2, 1.0), "row 2"),
        (Contribution(1, 0, 0, 0, 1.0), "core 1"),
        (Contribution(0, 0, 1, 0, 1.0), "cell 1"),
        (Contribution(0, 0, -1, 0, 1.0), "cell -1"),
    ],
)
def test_what_does_not_exist_is_refused(bad: Contribution, message: str) -> None:
    """Rows, cores and cells that do not exist are errors, negative ones included."""
    table = sgd_table([1.0, 2.0])

    with pytest.raises(IndexError, match=message):
        table.apply([bad], {(0, 0): [[1.0]], (1, 0): [[1.0]]}, 1.0)
