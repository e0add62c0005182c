"""Estimators that ignore the features: they learn class frequencies, or the mean label."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned import constructor_arguments as arguments
from estimator_bridge.canned.constructor_arguments import V1, V2, Arguments, constructor
from estimator_bridge.canned.heads.head import MEAN, per_replica
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.runtime.estimator.base_estimator import Estimator, EstimatorV2
from estimator_bridge.runtime.program_types import Features, ModelFn, ModelSpec
from tf2_engine import tf_compat
from tf2_engine.types import Nest, Object, Op, Tensor, Variable

_RATE = 0.3

_CLASSIFIER = f"model_dir {arguments.CLASSIFIER} optimizer config loss_reduction"
_ESTIMATOR = "head model_dir optimizer config"
_REGRESSOR = f"model_dir {arguments.REGRESSOR} optimizer config loss_reduction"


def _v1_model_fn(head: Object, args: Arguments) -> ModelFn:
    def model_fn(features: Nest, labels: Nest, mode: str, config: RunConfig) -> ModelSpec:
        size = head.logits_dimension
        batch, checks = _checked_batch(features, _weight_key(args))
        with tf.variable_scope("baseline"):
            bias = tf.get_variable("bias", shape=[size], initializer=tf.zeros_initializer())
            logits = _logits(bias, batch, size, checks)

        def train_op_fn(loss: Tensor) -> Op:
            optimizer = arguments.v1_optimizer(args.optimizer, _RATE)
            return optimizer.minimize(loss, global_step=tf.train.get_global_step())

        return head.create_estimator_spec(features, mode, logits, labels, train_op_fn=train_op_fn)

    return model_fn


def _keras_model_fn(head: Object, args: Arguments) -> ModelFn:
    is_classifier = hasattr(args, "n_classes")
    loss_reduction = args.loss_reduction if is_classifier else MEAN  # as in stock

    def model_fn(features: Nest, labels: Nest, mode: str, config: RunConfig) -> ModelSpec:
        size = head.logits_dimension
        batch, checks = _checked_batch(features, _weight_key(args))
        with tf.name_scope("baseline"):
            bias = tf.Variable(tf.zeros([size]), name="bias", use_resource=True)
            logits = _logits(bias, batch, size, checks)
        optimizer = None
        if mode == ModeKeys.TRAIN:
            optimizer = arguments.counting_steps(arguments.keras_optimizer(args.optimizer, _RATE))

        def train_op_fn(loss: Tensor) -> Op:
            assert optimizer is not None
            of_replica = per_replica(loss, loss_reduction)
            return optimizer.get_updates(of_replica, [bias])[0]

        return head.create_estimator_spec(features, mode, logits, labels, train_op_fn=train_op_fn)

    return model_fn


def _checked_batch(features: Features, weight_key: str | None) -> tuple[Tensor, list[Op]]:
    sizes = [tf.shape(value)[0] for key, value in features.items() if key != weight_key]
    if not sizes:
        raise errors.InvalidInput(
            f"The features are {sorted(features)}, but at least one feature besides the weights is "
            "needed to determine the batch size."
        )
    return sizes[0], [tf.debugging.assert_equal(sizes[0], other) for other in sizes[1:]]


def _logits(bias: Variable, batch: Tensor, size: int, checks: list[Op]) -> Tensor:
    # The bias was created outside this scope, so that its initial value does not wait for input.
    with tf.control_dependencies(checks):
        return tf.multiply(bias, tf.ones([batch, size]))


def _weight_key(args: Arguments) -> str | None:
    column = args.weight_column if hasattr(args, "n_classes") else None
    if column is None or isinstance(column, str):
        return column
    if not tf_compat.is_dense_column(column, numeric=True):
        raise errors.WrongType(
            f"Weight column must be either a string or NumericColumn. Given type: {type(column)}."
        )
    return str(column.key)


@constructor(V1, _v1_model_fn, _CLASSIFIER, optimizer="Ftrl")
class BaselineClassifier(Estimator):
    """Predicts class frequencies, whatever the features are; arguments as in `DNNClassifier`.

    An optimizer that is given by name has a learning rate of 0.3.
    """


@constructor(V2, _keras_model_fn, _CLASSIFIER, optimizer="Ftrl")
class BaselineClassifierV2(EstimatorV2):
    """`BaselineClassifier` for TensorFlow 2, with arguments as in `DNNClassifierV2`."""


@constructor(V1, _v1_model_fn, _ESTIMATOR, optimizer="Ftrl")
class BaselineEstimator(Estimator):
    """Trains a bias with any head; arguments as in `DNNEstimator` and `BaselineClassifier`."""


@constructor(V2, _keras_model_fn, _ESTIMATOR, optimizer="Ftrl")
class BaselineEstimatorV2(EstimatorV2):
    """`BaselineEstimator` for TensorFlow 2, with arguments as in `DNNEstimatorV2`."""


@constructor(V1, _v1_model_fn, _REGRESSOR, optimizer="Ftrl")
class BaselineRegressor(Estimator):
    """Predicts the mean label; arguments as in `DNNRegressor` and `BaselineClassifier`."""


@constructor(V2, _keras_model_fn, _REGRESSOR, optimizer="Ftrl")
class BaselineRegressorV2(EstimatorV2):
    """`BaselineRegressor` for TensorFlow 2, with arguments as in `DNNRegressorV2`."""
