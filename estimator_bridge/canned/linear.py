"""Estimators whose model is linear: the Linear classes of TensorFlow 1 and 2."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from estimator_bridge.canned import constructor_arguments as arguments
from estimator_bridge.canned.constructor_arguments import V1, V2, Arguments, constructor
from estimator_bridge.canned.linear_model import keras_linear, v1_linear
from estimator_bridge.canned.sdca import LinearSDCA, check_sdca, sdca_spec
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.runtime.estimator.base_estimator import Estimator, EstimatorV2
from estimator_bridge.runtime.program_types import Columns, Features, ModelFn, ModelSpec
from tf2_engine import tf_compat
from tf2_engine.types import Nest, Object, Tensor

_RATE = 0.2

_OF_LABELS = (
    "feature_columns model_dir {} optimizer config partitioner warm_start_from loss_reduction "
    "sparse_combiner"
)
_CLASSIFIER = _OF_LABELS.format(arguments.CLASSIFIER)
_ESTIMATOR = (
    "head feature_columns model_dir optimizer config partitioner sparse_combiner warm_start_from"
)
_REGRESSOR = _OF_LABELS.format(arguments.REGRESSOR)


def linear_logit_fn_builder(
    units: int, feature_columns: Columns, sparse_combiner: str = "sum"
) -> Callable[[Features], Tensor]:
    """Makes a function that computes a linear model's logits, [batch, units], from features.

    The function creates variables in the open variable scope. For the arguments, see
    `LinearClassifier`.
    """
    return functools.partial(v1_linear, feature_columns, units, sparse_combiner)


def default_rate(largest: float, columns: Columns) -> float:
    return min(largest, 1.0 / math.sqrt(len(columns)))


def _columns(args: Arguments) -> tuple[Object, ...]:
    columns = tuple(args.feature_columns or ())
    if isinstance(args.optimizer, LinearSDCA) and not hasattr(args, "head"):
        check_sdca(args, columns)
    return columns


def _v1_model_fn(head: Object, args: Arguments) -> ModelFn:
    columns, optimizer = _columns(args), args.optimizer

    def model_fn(features: Nest, labels: Nest, mode: str, config: RunConfig) -> ModelSpec:
        with tf.variable_scope(
            "linear",
            values=tuple(features.values()),
            partitioner=args.partitioner or arguments.input_partitioner(config),
        ):
            if isinstance(optimizer, LinearSDCA):
                return sdca_spec(optimizer, head, columns, features, labels, mode)
            logits = v1_linear(columns, head.logits_dimension, args.sparse_combiner, features)
            chosen = optimizer or tf.train.FtrlOptimizer(default_rate(_RATE, columns))
            v1_optimizer = arguments.v1_optimizer(chosen, _RATE)
            return head.create_estimator_spec(
                features, mode, logits, labels, optimizer=v1_optimizer
            )

    return model_fn


def _keras_model_fn(head: Object, args: Arguments) -> ModelFn:
    columns, optimizer = _columns(args), args.optimizer

    def model_fn(features: Nest, labels: Nest, mode: str, config: RunConfig) -> ModelSpec:
        if isinstance(optimizer, LinearSDCA):
            return sdca_spec(optimizer, head, columns, features, labels, mode)
        result = keras_linear(columns, head.logits_dimension, args.sparse_combiner, features)
        keras_optimizer = optimizer
        if mode == ModeKeys.TRAIN:
            ftrl = tf_compat.keras2().optimizers.legacy.Ftrl
            chosen = optimizer or ftrl(learning_rate=default_rate(_RATE, columns))
            keras_optimizer = arguments.counting_steps(arguments.keras_optimizer(chosen, _RATE))
        return head.create_estimator_spec(
            features,
            mode,
            result.logits,
            labels,
            optimizer=keras_optimizer,
            trainable_variables=[*result.weights, *result.bias],
        )

    return model_fn


@constructor(V1, _v1_model_fn, _CLASSIFIER, optimizer="Ftrl")
class LinearClassifier(Estimator):
    """Classifies with a linear model.

    Args:
        feature_columns: dense or categorical feature columns.
        optimizer: as in `DNNClassifier`, but with a default learning rate of 0.2; or a LinearSDCA.
            None means Ftrl with a learning rate of min(0.2, 1 / sqrt(number of columns)).
        partitioner: splits the variables into parts. None means parts of at least 64 MiB, and at
            most as many parts as there are parameter servers.
        sparse_combiner: how the weights of an example's categories are combined: 'sum', 'mean' or
            'sqrtn'.

    The other arguments are the same as in `DNNClassifier`.
    """


@constructor(V2, _keras_model_fn, _CLASSIFIER, optimizer="Ftrl")
class LinearClassifierV2(EstimatorV2):
    """`LinearClassifier` for TensorFlow 2, with columns of `tf.feature_column`.

    Optimizers are those of `tf.keras.optimizers.legacy`; reductions are as in `DNNClassifierV2`.
    """


@constructor(V1, _v1_model_fn, _ESTIMATOR, optimizer="Ftrl")
class LinearEstimator(Estimator):
    """Trains a linear model with any head; see `DNNEstimator` and `LinearClassifier`."""


@constructor(V2, _keras_model_fn, _ESTIMATOR, optimizer="Ftrl")
class LinearEstimatorV2(EstimatorV2):
    """Trains a linear model with any head; see `DNNEstimatorV2` and `LinearClassifierV2`."""


@constructor(V1, _v1_model_fn, _REGRESSOR, optimizer="Ftrl")
class LinearRegressor(Estimator):
    """Predicts numbers with a linear model; see `DNNRegressor` and `LinearClassifier`."""


@constructor(V2, _keras_model_fn, _REGRESSOR, optimizer="Ftrl")
class LinearRegressorV2(EstimatorV2):
    """Predicts numbers with a linear model; see `DNNRegressorV2` and `LinearClassifierV2`."""
