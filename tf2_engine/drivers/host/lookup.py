"""The forward pass: rows of a table to activations. Pure but for reading the table."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf2_engine.batch import Occurrences
from tf2_engine.plan import FeaturePlan
from tf2_engine.tables import PARAMETERS, Table


def look_up(feature: FeaturePlan, table: Table, batch: Occurrences) -> Any:
    """Returns the activation of one feature on one core: [*output_shape, dim] float32.

    Cells without ids are zero. Each row is multiplied by its gain, then rows are summed: the
    rounding order of the device. What counts as a row is up to the table's `activation`.
    """
    rows = feature.table.activation(table.gather(PARAMETERS, batch.ids))
    if batch.gain is not None:
        rows = batch.gain[:, None] * rows
    if batch.cell is not None:
        rows = tf.math.unsorted_segment_sum(rows, batch.cell, batch.num_cells)
    sizes = [-1 if size is None else size for size in feature.output_shape]
    activation = tf.reshape(rows, [*sizes, feature.table.dim])
    return tf.ensure_shape(activation, [*feature.output_shape, feature.table.dim])


def row_gradients(feature: FeaturePlan, batch: Occurrences, gradient: Any) -> Any:
    """Returns [num_ids, dim] float32: what each occurrence sends back, gain times gradient."""
    rows = tf.reshape(gradient, [-1, feature.table.dim])
    if batch.cell is not None:
        rows = tf.gather(rows, batch.cell)
    return rows if batch.gain is None else batch.gain[:, None] * rows
