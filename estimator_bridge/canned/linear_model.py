"""Defines the linear model: a weight for each value of each feature column, and a bias."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned.constructor_arguments import check_features, check_new_columns
from estimator_bridge.runtime.program_types import Columns, Features
from tf2_engine import tf_compat
from tf2_engine.graph_mode import do_not_convert
from tf2_engine.types import Object, Tensor, Variable

keras = tf_compat.keras2()
Layer: Object = keras.layers.Layer
Model: Object = keras.Model

V1_NAME, KERAS_NAME = "linear_model", "linear/linear_model"
"""The linear layer's name in TensorFlow 1 (relative to the open scope), and in Keras."""


class LinearResult(NamedTuple):
    """The logits of a linear model, [batch, units], and all parts of its variables."""

    logits: Tensor
    weights: list[Variable]
    bias: list[Variable]


class LinearLayer(Layer):
    """Computes logits: the sum of an example's category weights, weighted numbers, and the bias."""

    def __init__(
        self, feature_columns: Columns, units: int, sparse_combiner: str, name: str
    ) -> None:
        super().__init__(name=name)
        self._columns = tf_compat.sorted_columns(feature_columns)
        kinds = (tf_compat.DenseColumn, tf_compat.CategoricalColumn)
        for column in self._columns:
            if not isinstance(column, kinds):
                raise errors.InvalidInput(
                    "Items of feature_columns must be either a DenseColumn or CategoricalColumn. "
                    f"Given: {column}."
                )
        self.units, self._combiner = units, sparse_combiner
        self.state = tf_compat.ColumnState(self, self.trainable)
        self.bias: Object = None

    @property
    def bias_parts(self) -> list[Variable]:
        return _parts([self.bias])

    def weights_of(self, column: Object) -> list[Variable]:
        return _parts([self.state.get_variable(column, "weights")])

    def build(self, _: Object) -> None:
        zeros = keras.initializers.zeros()
        with tf_compat.variable_scope_only(self.name):
            for column in self._columns:
                name = tf_compat.column_scope_name(column.name)
                with tf_compat.variable_scope_only(name):
                    column.create_state(self.state)
                    self.state.create_variable(
                        column,
                        name="weights",
                        dtype=tf.float32,
                        shape=(_num_weights(column), self.units),
                        initializer=zeros,
                        trainable=self.trainable,
                    )
            self.bias = self.add_weight(
                name="bias_weights",
                dtype=tf.float32,
                shape=[self.units],
                initializer=zeros,
                trainable=self.trainable,
                use_resource=True,
                getter=tf.get_variable,
            )
        super().build(None)

    @do_not_convert
    def call(self, features: Features) -> Tensor:
        check_features(features)
        cache = tf_compat.FeatureCache(features)
        sums = []
        with tf.name_scope(self.name):
            for column in self._columns:
                with tf.name_scope(tf_compat.column_scope_name(column.name)):
                    weighted = tf_compat.weighted_sum(
                        column=column,
                        transformation_cache=cache,
                        state_manager=self.state,
                        sparse_combiner=self._combiner,
                        weight_var=self.state.get_variable(column, "weights"),
                    )
                sums.append(weighted)
            tf_compat.check_batch_sizes(sums, self._columns)
            without_bias = tf.add_n(sums, name="weighted_sum_no_bias")
            return tf.nn.bias_add(without_bias, self.bias, name="weighted_sum")


class _LinearModel(Model):
    def __init__(self, layer: LinearLayer) -> None:
        super().__init__(name=layer.name)
        self._linear_layer = layer

    @do_not_convert
    def call(self, features: Features) -> Tensor:
        return self._linear_layer(features)


def v1_linear(
    feature_columns: Columns, units: int, sparse_combiner: str, features: Features
) -> Tensor:
    if tf_compat.is_new_column(feature_columns):
        layer = LinearLayer(feature_columns, units, sparse_combiner, V1_NAME)
        return apply_layer(layer, features).logits
    model = tf_compat.V1LinearModel(
        feature_columns=feature_columns, units=units, sparse_combiner=sparse_combiner, name=V1_NAME
    )
    logits = model(features)
    variables = model.cols_to_vars()
    bias = _parts([variables.pop("bias")])
    _add_summaries(LinearResult(logits, _parts(variables.values()), bias), units)
    return logits


def keras_linear(
    feature_columns: Columns, units: int, sparse_combiner: str, features: Features
) -> LinearResult:
    check_new_columns(feature_columns)
    return apply_layer(LinearLayer(feature_columns, units, sparse_combiner, KERAS_NAME), features)


def apply_layer(layer: LinearLayer, features: Features) -> LinearResult:
    logits = _LinearModel(layer)(features)
    bias = layer.bias_parts
    weights = [each for each in _parts(layer.variables) if not any(each is part for part in bias)]
    result = LinearResult(logits, weights, bias)
    _add_summaries(result, layer.units, is_keras=layer.name == KERAS_NAME)
    return result


def _num_weights(column: Object) -> int:
    if isinstance(column, tf_compat.CategoricalColumn):
        return int(column.num_buckets)
    return int(column.variable_shape.num_elements())


def _parts(variables: Object) -> list[Variable]:
    parts: list[Variable] = []
    for variable in variables:
        is_whole = isinstance(variable, (tf.compat.v2.Variable, tf.Tensor))
        parts += [variable] if is_whole else list(variable)
    return parts


def _add_summaries(result: LinearResult, units: int, *, is_keras: bool = False) -> None:
    if units > 1:
        # Stock passes a list of parts, except in Keras, where variables are not split.
        bias = result.bias[0] if is_keras else result.bias
        tf.summary.histogram("bias", bias)
    else:
        tf.summary.scalar("bias", result.bias[0][0])
    if result.weights:
        tf.summary.scalar("fraction_of_zero_weights", _fraction_of_zeros(result.weights))


def _fraction_of_zeros(weights: Sequence[Variable]) -> Tensor:
    with tf.name_scope("zero_fraction"):
        with tf.name_scope("total_size"):
            sizes = [tf.size(each, out_type=tf.int64) for each in weights]
            size = tf.add_n(sizes)
        with tf.name_scope("total_zero"):
            zeros = tf.add_n(list(map(_num_zeros, weights, sizes)))
        with tf.name_scope("compute"):
            fraction = zeros / tf.cast(size, tf.float32, name="float32_size")
        return tf.identity(fraction, name="zero_fraction_or_nan")


def _num_zeros(weights: Variable, size: Tensor) -> Tensor:
    return tf.cond(
        tf.equal(size, tf.constant(0, tf.int64)),
        lambda: tf.constant(0.0),
        lambda: tf.nn.zero_fraction(weights) * tf.cast(size, tf.float32),
        name="zero_count",
    )
