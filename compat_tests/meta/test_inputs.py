"""Checks how the references read dense, sparse and ragged inputs, with small examples."""

from __future__ import annotations

import numpy as np
import pytest

from compat_tests.references import inputs


def test_dense_ids_are_one_per_cell() -> None:
    """A dense batch of any rank gives each cell one id of weight 1, id 0 and repeats included."""
    flat = [(0, 5, 1.0), (1, 0, 1.0), (2, 5, 1.0), (3, 2, 1.0)]

    assert flat == inputs.dense([5, 0, 5, 2])
    assert flat == inputs.dense([[5], [0], [5], [2]])
    assert flat == inputs.dense([[5, 0], [5, 2]])


def test_sparse_entries_belong_to_their_row() -> None:
    """A plain sparse entry belongs to its sample, at any position in the sample.

    A batch may be empty, and no weights, or an empty tensor of them, stand for ones.
    """
    occurrences = inputs.sparse([[0, 0], [0, 7], [2, 1]], [4, 4, 9], [0.5, 2.0, -1.0])

    assert occurrences == [(0, 4, 0.5), (0, 4, 2.0), (2, 9, -1.0)]
    assert inputs.sparse(np.zeros((0, 2), np.int64), []) == []
    for weights in (None, [], np.zeros((0,), np.float32)):
        assert inputs.sparse([[1, 0]], [4], weights) == [(1, 4, 1.0)]
        assert inputs.ragged([0, 1], [4], weights, num_cells=1) == [(0, 4, 1.0)]


def test_sparse_sequence_keeps_gaps_and_cuts_off() -> None:
    """With T = 2, entry (b, t) is cell 2 b + t, and entries at t >= 2 are dropped.

    Sample 0 has positions 0 and 2: the second is cut off, cell 1 stays empty.
    Sample 1 has position 1 only: cell 2 is a gap, cell 3 is filled.
    Sample 2 has position 1 twice: both are in cell 5.
    """
    occurrences = inputs.sparse(
        [[0, 0], [0, 2], [1, 1], [2, 1], [2, 1]],
        [10, 11, 12, 13, 14],
        [1.0, 2.0, 3.0, 4.0, 5.0],
        max_sequence_length=2,
    )

    assert occurrences == [(0, 10, 1.0), (3, 12, 3.0), (5, 13, 4.0), (5, 14, 5.0)]


def test_ragged_rows_are_combined_when_there_is_a_cell_for_each() -> None:
    """Three ragged rows for three cells keep their weights, and an empty row has no occurrence."""
    occurrences = inputs.ragged([0, 2, 2, 3], [7, 8, 9], [0.5, 0.25, 4.0], num_cells=3)

    assert occurrences == [(0, 7, 0.5), (0, 8, 0.25), (2, 9, 4.0)]


def test_ragged_rows_are_sequences_when_there_are_more_cells() -> None:
    """Two ragged rows for four cells are sequences of two, cut off or left short, unweighted.

    Row 0 is [7, 8, 9] and loses 9; row 1 is [6] and leaves cell 3 empty.
    """
    occurrences = inputs.ragged([0, 3, 4], [7, 8, 9, 6], [0.5, 0.0, 4.0, -3.0], num_cells=4)

    assert occurrences == [(0, 7, 1.0), (1, 8, 1.0), (2, 6, 1.0)]


def test_counts_that_differ_are_refused() -> None:
    """A value without an index, weight or cell raises an error; it is not dropped."""
    with pytest.raises(ValueError, match="1 entries and `values` has 2"):
        inputs.sparse([[0, 0]], [1, 2])
    with pytest.raises(ValueError, match="1 weights were given for 2 ids"):
        inputs.sparse([[0, 0], [0, 1]], [1, 2], [1.0])
    with pytest.raises(ValueError, match="2 ragged rows cannot fill 3 cells"):
        inputs.ragged([0, 1, 2], [7, 8], num_cells=3)
