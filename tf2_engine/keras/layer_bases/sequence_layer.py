"""Layers for recurrent networks: one that concatenates sequence features, and a GRU cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.graph_mode import do_not_convert
from tf2_engine.keras import columns as column_types
from tf2_engine.keras.columns import ModelColumn, SequenceNumeric, TableColumn
from tf2_engine.keras.layer_bases import column_layers
from tf2_engine.keras.layer_settings import Configurable, Untracked, keras_of
from tf2_engine.preprocessing import Prepared
from tf2_engine.types import Object, SparseTensor, Tensor


class _Steps(NamedTuple):
    """A column's values, [batch, steps, width] float32, and sequence lengths, [batch] int64."""

    values: Tensor
    lengths: Tensor


class SequenceFeaturesLayer(column_layers.EmbeddingColumnsLayer):
    """Concatenates sequences in the order of names, like `tf.keras.experimental.SequenceFeatures`.

    For features with tables, the inputs are activations from a `ColumnEmbedding`; for all others,
    they are raw features.

    Args:
        columns: one column or several, each a `TableColumn` with a `max_sequence_length`, a
            `SequenceNumeric`, or a `PlainEmbedding` or `Indicator` of a `preprocessing.Sequence`.
    """

    @do_not_convert
    def call(self, features: Mapping[str, Object]) -> tuple[Tensor, Tensor]:
        """Returns [batch, steps, sum of widths] float32 and lengths, [batch] int64.

        The lengths are those of the first column. Steps after the end of a sequence are zeros, or
        the default value of a `SequenceNumeric`.
        """
        prepared = self._preprocessing(features)
        parts = [self._steps(each, features, prepared) for each in self._columns]
        of_raw = [
            part.lengths
            for each, part in zip(self._columns, parts, strict=True)
            if not isinstance(each, TableColumn)
        ]
        message = (
            "In a batch, the sequences of one feature have different lengths from those of "
            "another. Give an example's sequences the same length in all features of the layer."
        )
        checks = [tf.debugging.assert_equal(each, of_raw[0], message) for each in of_raw[1:]]
        with tf.control_dependencies([each for each in checks if each is not None]):
            values = [tf.identity(part.values) for part in parts]
        return values[0] if len(values) == 1 else tf.concat(values, -1), parts[0].lengths

    def _steps(
        self, column: ModelColumn, features: Mapping[str, Object], prepared: Prepared
    ) -> _Steps:
        if isinstance(column, TableColumn):
            return _Steps(features[column.key], features[column_layers.lengths_key(column.key)])
        if isinstance(column, SequenceNumeric):
            return _numbers(column, features[column.key])
        name, categorical = column_types.column_name(column), column_layers.ids_of(column)
        if categorical is None or not categorical.is_sequence:
            raise errors.InvalidInput(
                f"{name!r} is not a sequence column. Pass it to `DenseFeatures`, or make it from a "
                "`preprocessing.Sequence`."
            )
        ids, weights = _by_step(prepared.ids[name]), (prepared.weights or {}).get(name)
        if isinstance(column, column_types.PlainEmbedding):
            values = self._looked_up(column, ids, None if weights is None else _by_step(weights))
        else:
            depth = column_types.num_buckets(categorical)
            values = column_layers.counts_of(ids, weights, depth)
        return _Steps(values, prepared.lengths[name])


def _by_step(sparse: SparseTensor) -> SparseTensor:
    if sparse.shape.rank != 2:
        return sparse
    shape = sparse.dense_shape
    return tf.sparse.reshape(sparse, [shape[0], shape[1], 1])


def _numbers(column: SequenceNumeric, values: Object) -> _Steps:
    if not isinstance(values, tf.SparseTensor):
        raise errors.InvalidInput(
            f"Feature {column.key!r}: a SequenceNumeric takes a SparseTensor, which contains the "
            f"lengths of the sequences, but got {values!r}. Convert the tensor with "
            "tf.sparse.from_dense, or parse Examples."
        )
    if column.normalizer_fn is not None:
        values = column.normalizer_fn(values)
    width = math.prod(column.shape)
    default = tf.cast(column.default_value, values.dtype)
    dense = tf.sparse.to_dense(values, default_value=default)
    numbers = tf.reshape(tf.cast(dense, tf.float32), [tf.shape(dense)[0], -1, width])
    # If the shape is [batch, all numbers], a step has `width` consecutive numbers.
    per_step = width if values.shape.rank == 2 else 1
    steps = values.indices[:, 1] // per_step + 1
    ends = tf.math.unsorted_segment_max(steps, values.indices[:, 0], values.dense_shape[0])
    return _Steps(numbers, tf.maximum(ends, 0))


class GRUCellBase(Configurable):
    """A GRU with the variables of `tf.compat.v1.nn.rnn_cell.GRUCell`.

        layer = tf.keras.layers.RNN(GRUCell(24), name="rnn")

    The state h becomes u h + (1 - u) c (Cho et al., 2014), where

        [r, u] = sigmoid(gates([x, h]))        the reset gate and the update gate
        c = tanh(candidate([x, r h]))          the candidate

    Unlike in `tf.keras.layers.GRUCell` with `reset_after=False`, the initial bias of `gates` is 1.
    """

    def __init__(self, units: int, name: str = "gru_cell", **options: object) -> None:
        super().__init__(name=name, **options)  # type: ignore[call-arg]
        self._arguments = Untracked({"units": units})
        self.units = self.state_size = self.output_size = units
        dense = keras_of(self).layers.Dense
        self.gates = dense(2 * units, "sigmoid", bias_initializer="ones", name="gates")
        self.candidate = dense(units, "tanh", name="candidate")

    def build(self, shape: Sequence[int]) -> None:
        for layer in (self.gates, self.candidate):
            with tf.name_scope(layer.name):
                layer.build((None, shape[-1] + self.units))
        self.built = True

    def call(
        self, inputs: Tensor, states: list[Tensor], training: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Returns the output, [batch, units], and the new state, which equals the output."""
        state = states[0]
        reset, update = tf.split(self.gates(tf.concat([inputs, state], 1)), 2, 1)
        candidate = self.candidate(tf.concat([inputs, reset * state], 1))
        new = update * state + (1 - update) * candidate
        return new, [new]
