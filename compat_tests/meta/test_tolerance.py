"""Checks the model of float32 error against actual float32 arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from compat_tests.references.optimizers import OPTIMIZERS
from compat_tests.references.tolerance import UNIT_ROUNDOFF, allowed, assert_close
from compat_tests.references.training import Contribution, ReferenceTable


def test_the_bound_counts_roundings() -> None:
    """The bound is roundings times u times scale: 2 n + 4 to read, 2 (2 n + 4) + 23 a step.

    n = 3: 10 to read and 43 a step, so 10 + 2 * 43 = 96 after two.
    """
    np.testing.assert_allclose(allowed(3, 0, 5.0), 10 * UNIT_ROUNDOFF * 5, rtol=1e-12)
    np.testing.assert_allclose(allowed(3, 2, 5.0), 96 * UNIT_ROUNDOFF * 5, rtol=1e-12)
    assert 0 < allowed(1, 1, 0.0) < 1e-30


def test_the_failure_says_where_and_by_how_much() -> None:
    """The message names the place, both values, the bound and the number of elements beyond it."""
    expected = np.ones((2, 3))
    actual = expected.copy()
    actual[1, 2], actual[0, 0] = 1.25, 1.125

    with pytest.raises(AssertionError) as failure:
        assert_close(expected, actual, n_terms=3, steps=0, where="Adagrad on host, step 4")

    assert str(failure.value) == (
        "Adagrad on host, step 4: row 1, column 2 is 1.25 instead of 1, off by 0.25; "
        "allowed 5.96e-07 (n_terms=3, steps=0, scale=1). 2 of 6 elements are off."
    )


def test_one_rounding_passes_and_a_bound_more_fails() -> None:
    bound = allowed(1, 1, 2.0)
    for sign in (1.0, -1.0):
        within, beyond = (np.array([1.0 + sign * share * bound, 2.0]) for share in (0.99, 1.01))
        assert_close([1.0, 2.0], within, n_terms=1, steps=1, where="here")
        with pytest.raises(AssertionError, match=r"here: element \(0,\)"):
            assert_close([1.0, 2.0], beyond, n_terms=1, steps=1, where="here")


@pytest.mark.parametrize(
    ("expected", "actual", "passes"),
    [
        (np.nan, np.nan, True),
        (np.inf, np.inf, True),
        (np.inf, -np.inf, False),
        (np.nan, 1.0, False),
        (1.0, np.nan, False),
        (1.0, np.inf, False),
    ],
)
def test_not_numbers_only_equal_themselves(expected: float, actual: float, passes: bool) -> None:
    """NaN and infinities pass where both sides have them, and never against a number."""
    if passes:
        assert_close([[expected, 1.0]], [[actual, 1.0]], n_terms=1, steps=1, where="here")
    else:
        with pytest.raises(AssertionError, match=r"row 0, column 0.*1 of 2 elements are off"):
            assert_close([[expected, 1.0]], [[actual, 1.0]], n_terms=1, steps=1, where="here")


def test_shapes_must_agree() -> None:
    """A result of another shape is refused rather than broadcast; two empty ones are equal."""
    with pytest.raises(AssertionError, match=r"here: shape \(3,\) instead of \(1, 3\)"):
        assert_close(np.ones((1, 3)), np.ones(3), n_terms=1, steps=1, where="here")
    assert_close(np.zeros((0, 3)), np.zeros((0, 3)), n_terms=1, steps=1, where="here")


SETTINGS = {
    "SGD": {},
    "Adagrad": {"initial_accumulator_value": 0.1},
    "Adam": {
        **{"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-3},
        **{"lazy_adam": True, "sum_inside_sqrt": True},
    },
}


def check_float32_run(name: str, lr_error: float = 0.0) -> None:
    """Trains 30 steps twice, as the reference does and in float32, and compares both.

    The float32 run uses the same rules on float32 arrays, which numpy evaluates in float32, so
    it shares their formula and differs by rounding only; `lr_error` spoils its rate.
    """
    rng = np.random.default_rng(7)
    initial = rng.normal(size=(20, 4)).astype(np.float32)
    table = ReferenceTable(initial, name, SETTINGS[name])
    w = initial.copy()
    slots = {key: value.astype(np.float32) for key, value in table.slots.items()}
    settings = {
        key: value if isinstance(value, bool) else np.float32(value)
        for key, value in SETTINGS[name].items()
    }
    lr = np.float32(0.05)
    for _ in range(30):
        ids = rng.integers(20, size=24)
        gains = rng.uniform(0.5, 2.0, size=24).astype(np.float32)
        grad = rng.normal(size=(24, 4)).astype(np.float32)
        table.apply(
            [
                Contribution(0, 0, cell, int(id_), float(gains[cell]))
                for cell, id_ in enumerate(ids)
            ],
            {(0, 0): grad},
            lr,
        )
        for row in sorted(set(ids.tolist())):
            g = np.zeros(4, np.float32)
            for cell in np.flatnonzero(ids == row)[::-1]:
                g = g + gains[cell] * grad[cell]
            old = {key: value[row] for key, value in slots.items()}
            rate = lr * np.float32(1 + lr_error)
            w[row], new = OPTIMIZERS[name].update(w[row], old, g, rate, settings)
            for key, value in new.items():
                assert value.dtype == np.float32, "the float32 run was promoted"
                slots[key][row] = value
    for key, actual in {"weights": w, **slots}.items():
        expected = table.weights if key == "weights" else table.slots[key]
        terms, scale = table.n_terms, table.scales[key]
        assert_close(expected, actual, n_terms=terms, steps=table.updates, scale=scale, where=key)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_rate_off_by_a_thousandth_is_noticed(name: str) -> None:
    """Thirty sparse steps in float32 stay within the bound, but not at a rate wrong by 0.1 %."""
    check_float32_run(name)
    with pytest.raises(AssertionError, match="weights"):
        check_float32_run(name, lr_error=1e-3)
