"""The forward pass: rows of a table to activations. Pure but for reading the table."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf2_engine.batch import Occurrences
from tf2_engine.plan import FeaturePlan
from tf2_engine.tables import PARAMETERS, Table


def look_up(feature: FeaturePlan, table: Table, batch: Occurrences) -> Any:
    """Returns the activation of one feature on one core: [*output_shape, dim] float32.

    What counts as a row is up to the table's `activation`.
    """
    rows = batch.combine(feature.table.activation(table.gather(PARAMETERS, batch.ids)))
    sizes = [-1 if size is None else size for size in feature.output_shape]
    activation = tf.reshape(rows, [*sizes, feature.table.dim])
    return tf.ensure_shape(activation, [*feature.output_shape, feature.table.dim])


def row_gradients(feature: FeaturePlan, batch: Occurrences, gradient: Any) -> Any:
    """Returns [num_ids, dim] float32: what each occurrence sends back, gain times gradient."""
    rows = tf.reshape(gradient, [-1, feature.table.dim])
    if batch.cell is not None:
        rows = tf.gather(rows, batch.cell)
    return rows if batch.gain is None else batch.gain[:, None] * rows
