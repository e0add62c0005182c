"""Sums of rows that are chosen by an index, without a copy of each of them."""

from __future__ import annotations

import tensorflow as tf

from tf2_engine.types import Tensor


def add_rows(rows: Tensor, row_of: Tensor, into: Tensor, count: Tensor | int) -> Tensor:
    """Returns [count, dim] float32: the sum of `rows[row_of[i]]` over all i whose `into[i]` is j.

    Each sum is taken in ascending order of i; one without terms is zero.

    Args:
        rows: [num_rows, dim] float32.
        row_of: [num_terms] int64.
        into: [num_terms] int64.
        count: an int or a scalar integer tensor.
    """
    if tf.config.list_physical_devices("GPU"):
        # The fused op of GPUs takes only indices that ascend.
        return tf.math.unsorted_segment_sum(tf.gather(rows, row_of), into, count)
    # Named after its use as a gradient, it is the op that gathers and adds in one pass: the two ops
    # above write and read a row for each term.
    total: Tensor = tf.raw_ops.SparseSegmentSumGrad(
        grad=rows, indices=into, segment_ids=row_of, output_dim0=tf.cast(count, tf.int32)
    )
    return total
