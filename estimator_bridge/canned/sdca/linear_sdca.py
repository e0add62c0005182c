"""Defines `LinearSDCA`, and reads examples for it from feature columns."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned.linear_model import LinearLayer
from estimator_bridge.runtime.program_types import Columns, Features
from tf2_engine import tf_compat
from tf2_engine.types import Object, Tensor, Variable


@dataclasses.dataclass(eq=False, repr=False)
class LinearSDCA:
    """Stochastic dual coordinate ascent, as the `optimizer` of a linear estimator.

    It minimizes the mean loss of the examples plus l1 and l2 regularization, without a learning
    rate. It stores four numbers for every example, so examples need names. It works with columns of
    `tf.feature_column`, for classifiers with two classes and regressors with one number.

    Args:
        example_id_column: the key of the feature that contains the name of each example, a string.
        num_loss_partitions: how many workers train at the same time.
        num_table_shards: over how many tables the numbers of the examples are spread; None means
            one.
        symmetric_l1_regularization: the factor of the sum of absolute weights in the loss, 0 or
            more.
        symmetric_l2_regularization: the factor of half the sum of squared weights in the loss,
            above 0.
        adaptive: whether to train more often on examples with a larger loss.

    References: Shalev-Shwartz and Zhang, "Stochastic Dual Coordinate Ascent Methods for Regularized
    Loss Minimization", 2013; Ma et al., 2015 (the distributed variant).
    """

    example_id_column: str
    num_loss_partitions: int = 1
    num_table_shards: int | None = None
    symmetric_l1_regularization: float = 0.0
    symmetric_l2_regularization: float = 1.0
    adaptive: bool = False


def check_sdca(
    optimizer: Object, columns: Columns, sparse_combiner: str, outputs: int, most: int
) -> None:
    if not isinstance(optimizer, LinearSDCA):
        return
    if sparse_combiner != "sum":
        raise errors.InvalidInput(
            'sparse_combiner must be "sum" when optimizer is a LinearSDCA object, got '
            f"{sparse_combiner!r}."
        )
    if not tf_compat.is_new_column(columns):
        raise errors.InvalidInput(
            "V2 feature columns required when optimizer is a LinearSDCA object. Use columns of "
            "tf.feature_column."
        )
    if outputs > most and most == 1:
        raise errors.InvalidInput(
            "LinearSDCA can only be used with one-dimensional label, got "
            f"label_dimension={outputs}. Use optimizer='Ftrl'."
        )
    if outputs > most:
        raise errors.InvalidInput(
            f"LinearSDCA cannot be used in a multi-class setting, got n_classes={outputs}. Use "
            "optimizer='Ftrl'."
        )


class SparseValues(NamedTuple):
    """The categories of a batch in one column: for each, the example, the id and the weight."""

    examples: Tensor
    ids: Tensor
    weights: Tensor


class Examples(NamedTuple):
    """A batch, and those weights of the model that the batch uses.

    Attributes:
        sparse: for each categorical column, the categories of the batch.
        sparse_weights: for each categorical column, a variable [buckets, 1] or the list of its
            parts.
        dense: for each dense column, the values, [batch, width] float32; then ones for the bias.
        dense_weights: for each dense column, a variable or the list of its parts; then the bias.
        labels, importance, names: [batch].
    """

    sparse: list[SparseValues]
    sparse_weights: list[list[Variable]]
    dense: list[Tensor]
    dense_weights: list[list[Variable]]
    labels: Tensor
    importance: Tensor
    names: Tensor


def read_examples(
    optimizer: LinearSDCA,
    layer: LinearLayer,
    feature_columns: Columns,
    features: Features,
    labels: Tensor,
    weight_column: Object,
) -> Examples:
    name = optimizer.example_id_column
    if name not in features:
        raise errors.InvalidInput(
            f"LinearSDCA: the features have no {name!r}, which `example_id_column` names; there "
            f"are {sorted(features)}. Add a string for each example."
        )
    cache = tf_compat.FeatureCache(features)
    batch_size = tf.shape(labels)[0]
    sparse, sparse_weights, dense, dense_weights = [], [], [], []
    for column in sorted(feature_columns, key=lambda each: str(each.name)):
        weights = layer.weights_of(column)
        if isinstance(column, tf_compat.CategoricalColumn):
            sparse.append(_distinct(column.get_sparse_tensors(cache, layer.state)))
            sparse_weights.append(weights)
        else:
            _check_rank(column)
            dense.append(column.get_dense_tensor(cache, layer.state))
            dense_weights.append(weights)
    return Examples(
        sparse,
        sparse_weights,
        [*dense, tf.ones([batch_size, 1])],
        [*dense_weights, layer.bias_parts],
        tf.cast(tf.reshape(labels, [-1]), tf.float32),
        _importance(features, weight_column, batch_size),
        features[name],
    )


def _importance(features: Features, weight_column: Object, batch_size: Tensor) -> Tensor:
    if not weight_column:
        return tf.ones([batch_size])
    # A numeric column has the key of its feature.
    key = str(getattr(weight_column, "key", weight_column))
    return tf.cast(tf.reshape(features[key], [-1]), tf.float32)


def _check_rank(column: Object) -> None:
    rank = column.variable_shape.ndims
    if rank != 1:
        raise errors.InvalidInput(
            f"LinearSDCA: column {column.name!r} has {rank} axes, but must have one. "
            "Flatten the feature in the input_fn."
        )


def _distinct(categories: Object) -> SparseValues:
    ids, weights = categories.id_tensor, categories.weight_tensor
    count = tf.shape(ids.indices)[0]
    values = tf.ones([count], tf.float32) if weights is None else weights.values
    examples = tf.reshape(ids.indices[:, 0], [-1])
    flat = tf.cast(tf.reshape(ids.values, [-1]), tf.int64)
    is_known = tf.greater_equal(flat, 0)
    flat, examples, values = (tf.boolean_mask(each, is_known) for each in (flat, examples, values))
    # Each pair of an example and an id becomes one number.
    width = tf.reduce_max(flat) + 1
    pairs, places = tf.unique(width * examples + flat)
    size = tf.shape(pairs)[0]
    kept = tf.unsorted_segment_min(examples, places, size)
    return SparseValues(
        kept, pairs - width * kept, tf.reshape(tf.unsorted_segment_sum(values, places, size), [-1])
    )
