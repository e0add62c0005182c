"""The EstimatorSpec of a linear model that `LinearSDCA` trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned.arguments import check_new_columns
from estimator_bridge.canned.heads.binary_class import BinaryClassHead
from estimator_bridge.canned.heads.graph_heads import GraphHead
from estimator_bridge.canned.heads.regression import RegressionHead
from estimator_bridge.canned.linear_model import KERAS_NAME, V1_NAME, LinearLayer, apply_layer
from estimator_bridge.canned.sdca.ascent import Ascent, UpdateWeightsHook
from estimator_bridge.canned.sdca.examples import read_examples
from estimator_bridge.canned.sdca.linear_sdca import LinearSDCA
from estimator_bridge.legacy.estimator_spec import EstimatorSpec, ModeKeys
from tf2_engine.types import Nest, Object, Tensor


def sdca_spec(
    optimizer: LinearSDCA,
    head: Object,
    feature_columns: Sequence[Object],
    features: Mapping[str, Tensor],
    labels: Nest,
    mode: str,
) -> EstimatorSpec:
    """Makes the EstimatorSpec of a linear model with one logit.

    For a head of TensorFlow 1 the variables are in the open variable scope.

    Raises:
        InvalidInput: the head is neither for two classes nor for one number, or a column is one of
            TensorFlow 1.
    """
    loss_type = _loss_type(head)
    check_new_columns(feature_columns)
    name = V1_NAME if isinstance(head, GraphHead) else KERAS_NAME
    layer = LinearLayer(feature_columns, 1, "sum", name)
    logits = apply_layer(layer, features).logits
    if mode != ModeKeys.TRAIN:
        return head.create_estimator_spec(features, mode, logits, labels)
    examples = read_examples(
        optimizer, layer, feature_columns, features, labels, head.weight_column
    )
    ascent = Ascent(optimizer, examples, loss_type)
    train_op = ascent.minimize(tf.train.get_global_step())
    spec = head.create_estimator_spec(
        features, mode, logits, labels, train_op_fn=lambda _: train_op
    )
    hook = UpdateWeightsHook(ascent, train_op)
    return spec._replace(training_chief_hooks=(*(spec.training_chief_hooks or ()), hook))


def _loss_type(head: Object) -> str:
    if isinstance(head, BinaryClassHead):
        return "logistic_loss"
    if isinstance(head, RegressionHead) and head.logits_dimension == 1:
        return "squared_loss"
    raise errors.InvalidInput(
        f"LinearSDCA: unsupported head type: {type(head).__name__}. Use a BinaryClassHead, or a "
        "RegressionHead of one number."
    )
