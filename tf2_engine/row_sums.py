"""Sums of rows that are chosen by an index, without a copy of each of them."""

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
    """Returns [count, dim] float32: the sum of `rows[row_of[i]]` over all i whose `into[i]` is j.

    On a CPU each sum is taken in ascending order of i. A GPU sorts the indices and adds in an order
    that depends on their number alone, so that results are the same in every run. A sum without
    terms is zero.

    Args:
        rows: [num_rows, dim] float32.
        row_of: [num_terms] int64, or None where term i is row i.
        into: [num_terms] int64.
        count: an int or a scalar integer tensor.
        each_has_terms: a promise that there is no sum without terms.
    """
    num_terms = tf.size(into, out_type=tf.int64)
    # Named after its use as a gradient, it is the op that gathers and adds in one pass: tf.gather
    # and tf.math.unsorted_segment_sum write and read a row for each term, and the second one takes
    # longer by itself, or, on a GPU, adds in whatever order its threads come.
    total: Tensor = tf.raw_ops.SparseSegmentSumGrad(
        grad=rows,
        indices=into,
        segment_ids=tf.range(num_terms) if row_of is None else row_of,
        output_dim0=tf.cast(count, tf.int32),
    )
    if each_has_terms:
        return total
    # Without a single term TensorFlow 2.21 returns memory as it finds it.
    return tf.where(num_terms > 0, total, tf.zeros_like(total))
