"""Batches of every kind to look up, each with its occurrences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from compat_tests.references.inputs import Occurrence, dense, ragged, sparse

ROWS, DIM = 12, 3
FIRST = np.random.default_rng(3).uniform(-1, 1, (ROWS, DIM)).astype(np.float32)
"""The initial value of every table, unless a test writes to it."""


class Input(NamedTuple):
    """The tensors that are enqueued for one feature, and their occurrences.

    Attributes:
        value: creates the tensor of ids.
        weight: creates the tensor of weights.
        occurrences: the occurrences, written by hand or read by the reference.
        shape: the activation's shape without `dim`.
        length: the feature's `max_sequence_length`.
        declared: whether the feature's spec has the output shape.
    """

    value: Callable[[], Any]
    weight: Callable[[], Any] | None
    occurrences: list[Occurrence]
    shape: tuple[int, ...]
    length: int = 0
    declared: bool = False


def a_sparse(
    indices: Sequence[Sequence[int]],
    ids: Sequence[int],
    weights: Sequence[float] | None = None,
    *,
    shape: Sequence[int],
    dtype: Any = tf.float32,
    **more: Any,
) -> Input:
    """Creates a sparse input with the dense shape `shape`."""
    where = np.array(indices, np.int64).reshape(-1, len(shape))
    occurrences = found_in_sparse(where, ids, weights, shape, more.get("length", 0))
    return Input(
        lambda: tf.SparseTensor(where, tf.constant(ids, tf.int64, [len(ids)]), shape),
        None
        if weights is None
        else lambda: tf.SparseTensor(where, tf.constant(weights, dtype, [len(ids)]), shape),
        occurrences,
        (shape[0], more["length"]) if more.get("length") else tuple(shape[:-1]),
        **more,
    )


def found_in_sparse(
    where: Any, ids: Sequence[int], weights: Sequence[float] | None, shape: Any, length: int
) -> list[Occurrence]:
    """Lists the occurrences. Indices of rank 3 are (sample, position, number of the id there)."""
    if len(shape) == 2 or length:
        return sparse(where[:, :2], ids, weights, max_sequence_length=length)
    occurrences = sparse(where[:, :2], ids, weights, max_sequence_length=shape[1])
    assert len(occurrences) == len(ids)
    return occurrences


def a_ragged(
    splits: Sequence[int],
    ids: Sequence[int],
    weights: Sequence[float] | None = None,
    *,
    shape: tuple[int, ...],
    dtype: Any = tf.int64,
    **more: Any,
) -> Input:
    values = tf.constant(ids, tf.int64)
    return Input(
        lambda: tf.RaggedTensor.from_row_splits(values, tf.constant(splits, dtype)),
        None
        if weights is None
        else lambda: tf.RaggedTensor.from_row_splits(weights, tf.constant(splits, dtype)),
        ragged(splits, ids, weights, num_cells=int(np.prod(shape))),
        shape,
        **more,
    )


def a_dense(ids: Any, dtype: Any = tf.int64) -> Input:
    """Creates a dense input. From rank 2 on, the last dimension of `ids` must be 1."""
    shape = np.shape(ids)
    return Input(
        lambda: tf.constant(ids, dtype),
        None,
        dense(ids),
        shape if len(shape) == 1 else shape[:-1],
    )


# Sample 1 is empty; sample 2 contains an id twice.
PLACES = [[0, 0], [0, 2], [2, 0], [2, 1], [2, 2], [3, 0]]
IDS = [4, 1, 7, 7, 0, 11]
# Sample 0 has a gap at 1; sample 1 is empty; sample 2 is cut after 3 positions.
GAPS = [[0, 0], [0, 2], [2, 0], [2, 1], [2, 2], [2, 3], [2, 4]]
GAP_IDS = [4, 1, 7, 7, 0, 3, 5]
# (sample, position, number): two ids at (0, 0), three at (2, 1), one beyond a length of 2.
SEVERAL = [[0, 0, 0], [0, 0, 1], [2, 1, 0], [2, 1, 1], [2, 1, 3], [2, 2, 0]]

INPUTS: dict[str, Input] = {
    "dense": a_dense([3, 0, 3, 11]),
    "dense, a column": a_dense([[3], [0], [3], [11]]),
    "dense, rank 3": a_dense([[[3], [0], [5]], [[3], [11], [3]]]),
    "dense, int32": a_dense([3, 0, 3, 11], tf.int32),
    "sparse": a_sparse(PLACES, IDS, shape=[4, 3]),
    "sparse, weights": a_sparse(PLACES, IDS, [0.5, 2.0, 1.5, 3.0, 0.25, 4.0], shape=[4, 3]),
    "sparse, float64 weights": a_sparse(
        PLACES, IDS, [0.5, 2.0, 1.5, 3.0, 0.25, 4.0], shape=[4, 3], dtype=tf.float64
    ),
    "sparse, int weights": a_sparse(PLACES, IDS, [1, 2, 3, 1, 2, 5], shape=[4, 3], dtype=tf.int64),
    "sparse, weights of zero": a_sparse(PLACES, IDS, [0, 0, 0, 1, 2, 0], shape=[4, 3]),
    # The weights of sample 0 sum to 0, those of sample 2 to -3, and those of sample 3 to -1.
    "sparse, negative weights": a_sparse(PLACES, IDS, [2, -2, 1, -5, 1, -1], shape=[4, 3]),
    "sparse, nothing": a_sparse([], [], shape=[4, 3]),
    "sparse, nothing, weights": a_sparse([], [], [], shape=[4, 3]),
    "sparse, shape declared": a_sparse(PLACES, IDS, shape=[4, 3], declared=True),
    "sparse, rank 3": a_sparse(SEVERAL, IDS, [1, 2, 3, 1, 2, 5], shape=[3, 3, 4]),
    "sequence": a_sparse(GAPS, GAP_IDS, shape=[3, 5], length=3),
    "sequence, weights": a_sparse(
        GAPS, GAP_IDS, [0.5, 2.0, 1.5, 3.0, 0.25, 4.0, 1.0], shape=[3, 5], length=3
    ),
    "sequence, longer than its ids": a_sparse(GAPS, GAP_IDS, shape=[3, 5], length=7),
    "sequence of one": a_sparse(GAPS, GAP_IDS, shape=[3, 5], length=1),
    "sequence of several": a_sparse(SEVERAL, IDS, shape=[3, 3, 4], length=2),
    "sequence of several, weights": a_sparse(
        SEVERAL, IDS, [1, 2, 3, 1, 2, 5], shape=[3, 3, 4], length=2
    ),
    "ragged": a_ragged([0, 2, 2, 5, 6], IDS, shape=(4,)),
    "ragged, int32 splits": a_ragged([0, 2, 2, 5, 6], IDS, shape=(4,), dtype=tf.int32),
    "ragged, weights": a_ragged([0, 2, 2, 5, 6], IDS, [0.5, 2.0, -1.5, 3.0, 0.25, 0.0], shape=(4,)),
    "ragged sequence": a_ragged([0, 2, 2, 7, 7], GAP_IDS, shape=(4, 3), length=3),
    "ragged sequence, weights": a_ragged(
        [0, 2, 2, 7, 7], GAP_IDS, [0.5, 2, 1, 3, 0, -1, 1], shape=(4, 3), length=3
    ),
    "ragged sequence, shape declared": a_ragged(
        [0, 2, 2, 7, 7], GAP_IDS, shape=(4, 3), length=3, declared=True
    ),
}

Pairs = tuple[tuple[str, str], ...]
