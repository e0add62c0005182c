"""Sums rows that are selected by an index, without copying each of them."""

from __future__ import annotations

import tensorflow as tf

from tf2_engine.types import Tensor


def add_rows(
    rows: Tensor,
    row_of: Tensor | None,
    into: Tensor,
    count: Tensor | int,
    *,
    each_has_terms: bool = False,
) -> Tensor:
    """Computes for each j below `count` the sum of `rows[row_of[i]]` over i with `into[i] == j`.

    A CPU adds in ascending order of i. A GPU sorts the indices and adds in an order that only
    depends on their number, so every run gives the same result.

    Args:
        rows: [num_rows, dim] float32.
        row_of: [num_terms] int64, or None where term i is row i.
        into: [num_terms] int64.

    Returns:
        [count, dim] float32.
    """
    num_terms = tf.size(into, out_type=tf.int64)
    # This op is named after its use as a gradient, but it gathers and adds in one pass. The pair
    # tf.gather and tf.math.unsorted_segment_sum writes and reads a row for each term; the second
    # also takes longer by itself, and on a GPU it adds in the order in which threads arrive.
    total: Tensor = tf.raw_ops.SparseSegmentSumGrad(
        grad=rows,
        indices=into,
        segment_ids=tf.range(num_terms) if row_of is None else row_of,
        output_dim0=tf.cast(count, tf.int32),
    )
    if each_has_terms:
        return total
    # Without any terms, TensorFlow 2.21 returns uninitialized memory.
    return tf.where(num_terms > 0, total, tf.zeros_like(total))
