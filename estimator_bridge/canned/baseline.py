"""Estimators that ignore the features: the Baseline classes of TensorFlow 1 and 2.

The logits are a bias, the same for every example, so that a classifier learns how frequent the
classes are, and a regressor the mean of the labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned import optimizer_arguments
from estimator_bridge.canned.heads import head_training
from estimator_bridge.canned.heads.graph_heads import SUM, GraphRegressionHead, graph_class_head
from estimator_bridge.canned.heads.multi_class import class_head
from estimator_bridge.canned.heads.regression import RegressionHead
from estimator_bridge.canned.model_checks import check_features
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.runtime.estimator.base_estimator import Estimator, PathLike
from estimator_bridge.runtime.estimator.estimator_v2 import EstimatorV2
from estimator_bridge.runtime.program_types import ModelFn, ModelSpec
from tf2_engine import tf_compat
from tf2_engine.types import Nest, Object, Op, Tensor, Variable

_RATE = 0.3


def _v1_model_fn(head: Object, optimizer: Object, weight_column: Object = None) -> ModelFn:
    def model_fn(features: Nest, labels: Nest, mode: str, config: RunConfig) -> ModelSpec:
        check_features(features)
        size = head.logits_dimension
        batch, checks = _checked_batch(features, weight_column)
        with tf.variable_scope("baseline"):
            bias = tf.get_variable("bias", shape=[size], initializer=tf.zeros_initializer())
            logits = _logits(bias, batch, size, checks)

        def train_op_fn(loss: Tensor) -> Op:
            v1_optimizer = optimizer_arguments.v1_optimizer(optimizer, _RATE)
            return v1_optimizer.minimize(loss, global_step=tf.train.get_global_step())

        return head.create_estimator_spec(features, mode, logits, labels, train_op_fn=train_op_fn)

    return model_fn


def _keras_model_fn(
    head: Object,
    optimizer: Object,
    weight_column: Object = None,
    loss_reduction: str = head_training.MEAN,
) -> ModelFn:
    def model_fn(features: Nest, labels: Nest, mode: str, config: RunConfig) -> ModelSpec:
        check_features(features)
        size = head.logits_dimension
        batch, checks = _checked_batch(features, weight_column)
        with tf.name_scope("baseline"):
            bias = tf.Variable(tf.zeros([size]), name="bias", use_resource=True)
            logits = _logits(bias, batch, size, checks)
        keras_optimizer = None
        if mode == ModeKeys.TRAIN:
            keras_optimizer = optimizer_arguments.counting_steps(
                optimizer_arguments.keras_optimizer(optimizer, _RATE)
            )

        def train_op_fn(loss: Tensor) -> Op:
            assert keras_optimizer is not None
            of_replica = head_training.per_replica(loss, loss_reduction)
            return keras_optimizer.get_updates(of_replica, [bias])[0]

        return head.create_estimator_spec(features, mode, logits, labels, train_op_fn=train_op_fn)

    return model_fn


def _checked_batch(
    features: Mapping[str, Tensor], weight_column: Object
) -> tuple[Tensor, list[Op]]:
    """Returns the size of the batch, and checks that all features but the weights have it."""
    weight_key = _weight_key(weight_column)
    sizes = [tf.shape(value)[0] for key, value in features.items() if key != weight_key]
    if not sizes:
        raise errors.InvalidInput(
            f"The features are {sorted(features)}: one beside the weights is needed, from which "
            "the size of the batch is read."
        )
    return sizes[0], [tf.debugging.assert_equal(sizes[0], other) for other in sizes[1:]]


def _logits(bias: Variable, batch: Tensor, size: int, checks: list[Op]) -> Tensor:
    """Returns the bias for each example, [batch, size], once the checks have passed."""
    # The variable is not made behind the checks: its first value would wait for the input.
    with tf.control_dependencies(checks):
        return tf.multiply(bias, tf.ones([batch, size]))


def _weight_key(weight_column: Object) -> str | None:
    if weight_column is None or isinstance(weight_column, str):
        return weight_column
    if not tf_compat.is_dense_column(weight_column, numeric=True):
        raise errors.WrongType(
            "Weight column must be either a string or NumericColumn. Given type: "
            f"{type(weight_column)}."
        )
    return str(weight_column.key)


class BaselineClassifier(Estimator):
    """Predicts how frequent the classes are; of `tf.compat.v1.estimator`.

    Args:
        model_dir, config: those of `Estimator`.
        n_classes: how many classes there are; 2 has one logit.
        weight_column: a numeric column, or its key, with a weight for each example.
        label_vocabulary: the labels as strings, in the order of their ids; None: they are ids.
        optimizer: an optimizer of `tf.compat.v1.train`, a function that returns one, or one of
            'Adagrad', 'Adam', 'Ftrl', 'RMSProp' and 'SGD', with a learning rate of 0.3.
        loss_reduction: one of `tf.compat.v1.losses.Reduction`, but NONE.

    Raises:
        InvalidInput: an argument is not possible.
    """

    def __init__(
        self,
        model_dir: PathLike | None = None,
        n_classes: int = 2,
        weight_column: Object = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Object = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: str = SUM,
    ) -> None:
        head = graph_class_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        super().__init__(_v1_model_fn(head, optimizer, weight_column), model_dir, config)


class BaselineClassifierV2(EstimatorV2):
    """Predicts how frequent the classes are; of `tf.estimator` in TensorFlow 2.

    Args:
        optimizer: an optimizer of `tf.keras.optimizers.legacy`, a function that returns one, or a
            name as for `BaselineClassifier`.
        loss_reduction: one of `tf.losses.Reduction`, but NONE.

    The other arguments are those of `BaselineClassifier`.
    """

    def __init__(
        self,
        model_dir: PathLike | None = None,
        n_classes: int = 2,
        weight_column: Object = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Object = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: str = head_training.MEAN,
    ) -> None:
        head = class_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        model_fn = _keras_model_fn(head, optimizer, weight_column, loss_reduction)
        super().__init__(model_fn, model_dir, config)


class BaselineEstimator(Estimator):
    """A bias with any head; of `tf.compat.v1.estimator`.

    Args:
        head: turns logits into loss, predictions, metrics and a train op.

    The other arguments are those of `BaselineClassifier`.
    """

    def __init__(
        self,
        head: Object,
        model_dir: PathLike | None = None,
        optimizer: Object = "Ftrl",
        config: RunConfig | None = None,
    ) -> None:
        super().__init__(_v1_model_fn(head, optimizer), model_dir, config)


class BaselineEstimatorV2(EstimatorV2):
    """A bias with any head; of `tf.estimator` in TensorFlow 2.

    Args:
        head: a `Head`.

    The other arguments are those of `BaselineClassifierV2`.
    """

    def __init__(
        self,
        head: Object,
        model_dir: PathLike | None = None,
        optimizer: Object = "Ftrl",
        config: RunConfig | None = None,
    ) -> None:
        super().__init__(_keras_model_fn(head, optimizer), model_dir, config)


class BaselineRegressor(Estimator):
    """Predicts the mean of the labels; of `tf.compat.v1.estimator`.

    Args:
        label_dimension: how many numbers an example has.
        weight_column: a numeric column, or its key, with a weight for each example or number.

    The other arguments are those of `BaselineClassifier`.
    """

    def __init__(
        self,
        model_dir: PathLike | None = None,
        label_dimension: int = 1,
        weight_column: Object = None,
        optimizer: Object = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: str = SUM,
    ) -> None:
        head = GraphRegressionHead(label_dimension, weight_column, loss_reduction)
        super().__init__(_v1_model_fn(head, optimizer), model_dir, config)


class BaselineRegressorV2(EstimatorV2):
    """Predicts the mean of the labels; of `tf.estimator` in TensorFlow 2.

    Args:
        label_dimension, weight_column: those of `BaselineRegressor`.

    The other arguments are those of `BaselineClassifierV2`.
    """

    def __init__(
        self,
        model_dir: PathLike | None = None,
        label_dimension: int = 1,
        weight_column: Object = None,
        optimizer: Object = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: str = head_training.MEAN,
    ) -> None:
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        super().__init__(_keras_model_fn(head, optimizer), model_dir, config)
