"""Checks the references' combiners against activations worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from compat_tests.references.inputs import Occurrence
from compat_tests.references.lookup import COMBINERS, combine

TABLE = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]


Pairs = list[tuple[int, float]]
ONES: Pairs = [(0, 1.0), (0, 1.0), (1, 1.0)]
CANCELLED: Pairs = [(0, 2.0), (1, -2.0)]
BY_HAND: list[tuple[str, Pairs, list[float], list[float]]] = [
    # 2 * [1, 2] + 3 * [3, 4]
    ("sum", [(0, 2.0), (1, 3.0)], [11.0, 16.0], [2.0, 3.0]),
    # (1 * [1, 2] + 3 * [3, 4]) / 4 = [10, 14] / 4
    ("mean", [(0, 1.0), (1, 3.0)], [2.5, 3.5], [0.25, 0.75]),
    # (3 * [1, 2] + 4 * [3, 4]) / sqrt(9 + 16) = [15, 22] / 5
    ("sqrtn", [(0, 3.0), (1, 4.0)], [3.0, 4.4], [0.6, 0.8]),
    # An id that occurs twice counts twice: [1, 2] + [1, 2] + [3, 4] over three, not two.
    ("sum", ONES, [5.0, 8.0], [1.0] * 3),
    ("mean", ONES, [5 / 3, 8 / 3], [1 / 3] * 3),
    ("sqrtn", ONES, [5 / 3**0.5, 8 / 3**0.5], [1 / 3**0.5] * 3),
    # (2 * [1, 2] - 2 * [3, 4]) / sqrt(4 + 4)
    ("sqrtn", CANCELLED, [-(2**0.5)] * 2, [0.5**0.5, -(0.5**0.5)]),
]
EXACTLY: list[tuple[str, Pairs, list[float], list[float]]] = [
    *((combiner, [(0, 0.0), (1, 0.0)], [0.0, 0.0], [0.0, 0.0]) for combiner in COMBINERS),
    # A sum of weights of 0 gives zeros under mean, never NaN, and does not matter to a sum.
    ("mean", CANCELLED, [0.0, 0.0], [0.0, 0.0]),
    ("sum", CANCELLED, [-4.0, -4.0], [2.0, -2.0]),
    ("mean", [(0, 0.0), (1, 2.0)], [3.0, 4.0], [0.0, 1.0]),
    # (1 * [1, 2] - 3 * [3, 4]) / -2 = [-8, -10] / -2
    ("mean", [(0, 1.0), (1, -3.0)], [4.0, 5.0], [-0.5, 1.5]),
    # Under mean a negative weight cancels; sqrtn keeps its sign.
    ("mean", [(1, -3.0)], [3.0, 4.0], [1.0]),
    ("sqrtn", [(1, -3.0)], [-3.0, -4.0], [-1.0]),
]


def one_cell(*pairs: tuple[int, float]) -> list[Occurrence]:
    """Returns occurrences of cell 0 from (id, weight) pairs."""
    return [Occurrence(0, id_, weight) for id_, weight in pairs]


@pytest.mark.parametrize(
    ("case", "rtol"), [*((case, 1e-15) for case in BY_HAND), *((case, 0.0) for case in EXACTLY)]
)
def test_combiner_by_hand(case: tuple[str, Pairs, list[float], list[float]], rtol: float) -> None:
    """Each combiner divides the weighted sum by its own denominator, and so the gains."""
    combiner, pairs, activation, gains = case
    got, got_gains = combine(TABLE, one_cell(*pairs), 1, combiner)

    np.testing.assert_allclose(got, [activation], rtol=rtol)
    np.testing.assert_allclose(got_gains, gains, rtol=rtol)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_cells_without_ids_are_zeros(combiner: str) -> None:
    """Only the cell that has an id is filled; a batch without any is all zeros."""
    got, _ = combine(TABLE, [Occurrence(1, 2, 1.0)], 3, combiner)

    np.testing.assert_array_equal(got, [[0, 0], [5, 6], [0, 0]])
    np.testing.assert_array_equal(combine(TABLE, [], 2, combiner)[0], np.zeros((2, 2)))


def test_cells_do_not_share_a_denominator() -> None:
    """Mean divides each cell by its own weights, also when cells are interleaved."""
    mixed = [Occurrence(1, 0, 1.0), Occurrence(0, 1, 5.0), Occurrence(1, 2, 3.0)]

    got, gains = combine(TABLE, mixed, 2, "mean")

    # cell 1: ([1, 2] + 3 * [5, 6]) / 4
    np.testing.assert_array_equal(got, [[3.0, 4.0], [4.0, 5.0]])
    assert gains == [0.25, 1.0, 0.75]


def test_what_does_not_exist_is_refused() -> None:
    """A negative id does not wrap around, and unknown cells and combiners are errors."""
    with pytest.raises(IndexError, match="id -1 of cell 0"):
        combine(TABLE, one_cell((-1, 1.0)), 1, "sum")
    with pytest.raises(IndexError, match="id 3 of cell 0"):
        combine(TABLE, one_cell((3, 1.0)), 1, "sum")
    with pytest.raises(IndexError, match="cell 1 is outside"):
        combine(TABLE, [Occurrence(1, 0, 1.0)], 1, "sum")
    with pytest.raises(ValueError, match="'max'"):
        combine(TABLE, [], 1, "max")
