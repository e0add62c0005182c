"""Checks the references' combiners against activations worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from compat_tests.references.inputs import Occurrence, ragged, sparse
from compat_tests.references.lookup import COMBINERS, combine

TABLE = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]


def one_cell(*pairs: tuple[int, float]) -> list[Occurrence]:
    """Returns occurrences of cell 0 from (id, weight) pairs."""
    return [Occurrence(0, id_, weight) for id_, weight in pairs]


@pytest.mark.parametrize(
    ("combiner", "pairs", "activation", "gains"),
    [
        # 2 * [1, 2] + 3 * [3, 4]
        ("sum", [(0, 2.0), (1, 3.0)], [11.0, 16.0], [2.0, 3.0]),
        # (1 * [1, 2] + 3 * [3, 4]) / 4 = [10, 14] / 4
        ("mean", [(0, 1.0), (1, 3.0)], [2.5, 3.5], [0.25, 0.75]),
        # (3 * [1, 2] + 4 * [3, 4]) / sqrt(9 + 16) = [15, 22] / 5
        ("sqrtn", [(0, 3.0), (1, 4.0)], [3.0, 4.4], [0.6, 0.8]),
    ],
)
def test_combiner_by_hand(
    combiner: str,
    pairs: list[tuple[int, float]],
    activation: list[float],
    gains: list[float],
) -> None:
    """Each combiner divides the weighted sum by its own denominator, and so the gains."""
    got, got_gains = combine(TABLE, one_cell(*pairs), 1, combiner)

    np.testing.assert_allclose(got, [activation], rtol=1e-15)
    np.testing.assert_allclose(got_gains, gains, rtol=1e-15)


@pytest.mark.parametrize(
    ("combiner", "activation"),
    [
        ("sum", [5.0, 8.0]),  # [1, 2] + [1, 2] + [3, 4]
        ("mean", [5 / 3, 8 / 3]),  # over three occurrences, not two ids
        ("sqrtn", [5 / 3**0.5, 8 / 3**0.5]),
    ],
)
def test_a_repeated_id_counts_each_time(combiner: str, activation: list[float]) -> None:
    """An id that occurs twice in a sample adds twice and counts twice in the denominator."""
    got, _ = combine(TABLE, one_cell((0, 1.0), (0, 1.0), (1, 1.0)), 1, combiner)

    np.testing.assert_allclose(got, [activation], rtol=1e-15)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_weights_of_zero_give_zeros(combiner: str) -> None:
    """A cell whose weights are all zero is zeros under every combiner, never NaN."""
    got, gains = combine(TABLE, one_cell((0, 0.0), (1, 0.0)), 1, combiner)

    np.testing.assert_array_equal(got, [[0.0, 0.0]])
    assert gains == [0.0, 0.0]


def test_weights_that_cancel_are_zero_only_under_mean() -> None:
    """Weights 2 and -2 sum to zero, which mean turns into zeros and the others do not mind."""
    cell = one_cell((0, 2.0), (1, -2.0))

    np.testing.assert_array_equal(combine(TABLE, cell, 1, "mean")[0], [[0.0, 0.0]])
    # 2 * [1, 2] - 2 * [3, 4]
    np.testing.assert_array_equal(combine(TABLE, cell, 1, "sum")[0], [[-4.0, -4.0]])
    # the same over sqrt(4 + 4)
    np.testing.assert_allclose(combine(TABLE, cell, 1, "sqrtn")[0], [[-(2**0.5)] * 2], rtol=1e-15)


def test_a_zero_weight_beside_another_is_only_a_zero_gain() -> None:
    """Mean over weights 0 and 2 is the second row alone."""
    got, gains = combine(TABLE, one_cell((0, 0.0), (1, 2.0)), 1, "mean")

    np.testing.assert_array_equal(got, [[3.0, 4.0]])
    assert gains == [0.0, 1.0]


def test_a_negative_sum_divides_like_any_other() -> None:
    """Mean over weights 1 and -3 divides by -2.

    (1 * [1, 2] - 3 * [3, 4]) / -2 = [-8, -10] / -2 = [4, 5]
    """
    got, gains = combine(TABLE, one_cell((0, 1.0), (1, -3.0)), 1, "mean")

    np.testing.assert_array_equal(got, [[4.0, 5.0]])
    assert gains == [-0.5, 1.5]


def test_sqrtn_keeps_the_sign_of_a_weight() -> None:
    """A single weight of -3 is the row itself under mean, its negative under sqrtn."""
    cell = one_cell((1, -3.0))

    np.testing.assert_array_equal(combine(TABLE, cell, 1, "mean")[0], [[3.0, 4.0]])
    np.testing.assert_array_equal(combine(TABLE, cell, 1, "sqrtn")[0], [[-3.0, -4.0]])


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


def test_a_sparse_sequence_is_combined_cell_by_cell() -> None:
    """In a sequence mean cancels a lone weight, sum applies it, and gaps are zeros.

    T = 2; sample 0 has id 1 at position 1 with weight 4 and loses position 2.
    """
    cells = sparse([[0, 1], [0, 2]], [1, 2], [4.0, 1.0], max_sequence_length=2)

    np.testing.assert_array_equal(combine(TABLE, cells, 2, "mean")[0], [[0, 0], [3, 4]])
    np.testing.assert_array_equal(combine(TABLE, cells, 2, "sum")[0], [[0, 0], [12, 16]])


@pytest.mark.parametrize("combiner", COMBINERS)
def test_a_ragged_sequence_ignores_combiner_and_weights(combiner: str) -> None:
    """A ragged sequence gives the bare rows under every combiner."""
    cells = ragged([0, 2, 3], [1, 2, 0], [4.0, -1.0, 0.0], num_cells=4)

    got, _ = combine(TABLE, cells, 4, combiner)

    np.testing.assert_array_equal(got, [[3, 4], [5, 6], [1, 2], [0, 0]])


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
