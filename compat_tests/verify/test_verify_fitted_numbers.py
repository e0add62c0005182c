"""`verify` finds the factor on the gradients or the rate of a side, with any update rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from estimator_bridge.recording.files import TableDescription
from estimator_bridge.verification.compare.arithmetic.lookups import RecordedIds
from estimator_bridge.verification.compare.arithmetic.update_rules import ShadowInputs
from estimator_bridge.verification.explain import update_fits
from estimator_bridge.verification.explain.update_fits import GRADIENT, RATE, Guess, TableUpdate

RULES: dict[str, dict[str, Any]] = {
    "SGD": {},
    "Adagrad": {},
    "Momentum": {"momentum": 0.9, "use_nesterov": False},
    "RMSProp": {"rho": 0.9, "momentum": 0.5, "epsilon": 1e-7},
    "Adam": {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7, "sum_inside_sqrt": True},
    "FTRL": {
        "learning_rate_power": -0.5,
        "l1_regularization_strength": 0.01,
        "l2_regularization_strength": 0.02,
        "beta": 0.0,
        "multiply_linear_by_learning_rate": False,
    },
}
SLOTS = {
    "SGD": (),
    "Adagrad": ("accumulators",),
    "Momentum": ("momenta",),
    "RMSProp": ("ms", "mom"),
    "Adam": ("momenta", "velocities"),
    "FTRL": ("accumulators", "linears"),
}
DIM = 2


def update(kind: str, magnitude: float, setting: str, factor: float, num_rows: int) -> TableUpdate:
    """Returns an update in which a side multiplies its gradients or its rate by a factor."""
    table: TableDescription = {
        "name": "table",
        "variable": "rows",
        "slots": {slot: slot for slot in SLOTS[kind]},
        "combiner": "sum",
        "optimizer": None,
        "features": {"word": (0, None)},
        "rule": {"kind": kind, "settings": RULES[kind], "rates": [0.1], "multipliers": []},
    }
    rng = np.random.default_rng(0)
    ids = np.arange(num_rows)
    occurrences = RecordedIds(ids, ids, np.ones(num_rows), (num_rows,))
    gradient = (rng.normal(size=(num_rows, DIM)) * magnitude).astype(np.float32)
    before = {"rows": rng.normal(size=(8, DIM)).astype(np.float32)}
    before |= {slot: np.full((8, DIM), 0.1, np.float32) for slot in SLOTS[kind]}
    step = ShadowInputs(0, {"word": occurrences}, {"word": gradient})
    if setting == RATE:
        wrong = Guess("", "", update_fits.with_rates(table, factor))
    else:
        changed = update_fits.with_gradients(step, lambda each: each * np.float32(factor))
        wrong = Guess("", "", steps=[changed])
    expected = TableUpdate(table, before, before, step).expected(wrong)
    after = {name: values.copy() for name, values in before.items()}
    for name, part in expected.parts.items():
        after[name][expected.rows] = part.value.astype(np.float32)
    return TableUpdate(table, before, after, step)


@pytest.mark.parametrize("num_rows", [1, 4])
@pytest.mark.parametrize(
    "setting, factor", [(GRADIENT, 2), (GRADIENT, 0.5), (GRADIENT, 10), (RATE, 1.5), (RATE, 0.1)]
)
@pytest.mark.parametrize("kind", RULES)
def test_a_factor_is_found_at_any_size_of_gradients(
    kind: str, setting: str, factor: float, num_rows: int
) -> None:
    """This includes rows that hardly show it, as Adagrad with gradients far above its slots."""
    tried = 0
    for magnitude in (1e-2, 0.1, 1.0, 6.0, 30.0, 1e3):
        side = update(kind, magnitude, setting, factor, num_rows)
        rows = side.wrong_rows()
        if not len(rows):  # for example, L1 clips it to nothing on both sides
            continue
        tried += 1
        value = update_fits.fitted(side, rows, setting)
        # Accurate to a hundredth in each element that counts, because small movements are rounded.
        assert value == pytest.approx(factor, rel=1e-2), magnitude

    assert tried >= 4
