"""The forward pass on TensorFlow's ops: rows of a table to activations, and gradients back."""

from __future__ import annotations

import tensorflow as tf

from tf2_engine.batch import Occurrences
from tf2_engine.plan import FeaturePlan
from tf2_engine.tables import PARAMETERS, Table
from tf2_engine.types import Tensor


def look_up(feature: FeaturePlan, table: Table, batch: Occurrences) -> Tensor:
    """Returns the activation of one feature on one core: [*output_shape, dim] float32."""
    rows = batch.combine(feature.table.activation(table.gather(PARAMETERS, batch.ids)))
    sizes = [-1 if size is None else size for size in feature.output_shape]
    activation = tf.reshape(rows, [*sizes, feature.table.dim])
    return tf.ensure_shape(activation, [*feature.output_shape, feature.table.dim])


def row_gradients(feature: FeaturePlan, batch: Occurrences, gradient: Tensor) -> Tensor:
    """Returns gain times gradient for each occurrence's row, [num_ids, dim] float32."""
    rows: Tensor = tf.reshape(gradient, [-1, feature.table.dim])
    if batch.cell is not None:
        rows = tf.gather(rows, batch.cell)
    return rows if batch.gain is None else batch.gain[:, None] * rows
