"""`verify` finds the factor on the gradients or the rate of a side, with any update rule."""

from __future__ import annotations

import numpy as np
import pytest

from compat_tests.verify.test_verify_lockstep import SETTINGS, settings_of
from estimator_bridge.recording.files import TableDescription
from estimator_bridge.verification.compare.arithmetic.lookups import RecordedIds
from estimator_bridge.verification.compare.arithmetic.update_rules import ShadowInputs
from estimator_bridge.verification.explain import update_fits
from estimator_bridge.verification.explain.update_fits import GRADIENT, RATE, Guess, TableUpdate
from tf2_engine import optimizers

KINDS = ("SGD", "Adagrad", "Momentum", "RMSProp", "Adam", "FTRL")
DIM = 2


def update(kind: str, magnitude: float, setting: str, factor: float, num_rows: int) -> TableUpdate:
    """Returns an update in which a side multiplies its gradients or its rate by a factor."""
    optimizer = getattr(optimizers, kind)(**SETTINGS.get(kind, {}))
    table: TableDescription = {
        "name": "table",
        "variable": "rows",
        "slots": {slot: slot for slot in optimizer.slot_names},
        "combiner": "sum",
        "optimizer": None,
        "features": {"word": (0, None)},
        "rule": {
            "kind": kind,
            "settings": settings_of(optimizer),
            "rates": [0.1],
            "multipliers": [],
        },
    }
    rng = np.random.default_rng(0)
    ids = np.arange(num_rows)
    occurrences = RecordedIds(ids, ids, np.ones(num_rows), (num_rows,))
    gradient = (rng.normal(size=(num_rows, DIM)) * magnitude).astype(np.float32)
    before = {"rows": rng.normal(size=(8, DIM)).astype(np.float32)}
    before |= {slot: np.full((8, DIM), 0.1, np.float32) for slot in optimizer.slot_names}
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
@pytest.mark.parametrize("kind", KINDS)
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
