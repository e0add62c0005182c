"""Sums rows that are selected by an index, without copying each row."""

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
    """For each j below `count`, sums `rows[row_of[i]]` over all i with `into[i] == j`.

    A CPU adds in ascending order of i. A GPU adds in an order that depends only on the number of
    terms, so every run gives the same result.

    Args:
        rows: [num_rows, dim] float32.
        row_of: [num_terms] int64, or None if term i is row i.
        into: [num_terms] int64.
    """
    num_terms = tf.size(into, out_type=tf.int64)
    # This op is named after its use as a gradient, but it gathers and adds in one pass. tf.gather
    # with tf.math.unsorted_segment_sum would write and read a row for each term.
    # unsorted_segment_sum alone already takes longer, and on a GPU it adds in a random order.
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
