"""Estimators that add a linear model and a neural network: the DNNLinearCombined classes."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned import constructor_arguments as arguments
from estimator_bridge.canned.constructor_arguments import V1, V2, Arguments, constructor
from estimator_bridge.canned.dnn import (
    NetworkSettings,
    add_layer_summaries,
    keras_logits,
    v1_logits,
)
from estimator_bridge.canned.heads.head import MEAN, per_replica
from estimator_bridge.canned.linear import default_rate
from estimator_bridge.canned.linear_model import keras_linear, v1_linear
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.runtime.estimator.base_estimator import Estimator, EstimatorV2
from estimator_bridge.runtime.program_types import ModelFn, ModelSpec
from tf2_engine.types import Nest, Object, Op, Tensor, Variable

_DNN_RATE = 0.001
_LINEAR_RATE = 0.005

_MODEL = (
    "model_dir linear_feature_columns linear_optimizer dnn_feature_columns dnn_optimizer "
    "dnn_hidden_units dnn_activation_fn dnn_dropout"
)
_OF_LABELS = (
    f"{_MODEL} {{}} input_layer_partitioner config warm_start_from loss_reduction batch_norm "
    "linear_sparse_combiner"
)
_CLASSIFIER = _OF_LABELS.format(arguments.CLASSIFIER)
_ESTIMATOR = f"head {_MODEL} input_layer_partitioner config batch_norm linear_sparse_combiner"
_REGRESSOR = _OF_LABELS.format(arguments.REGRESSOR)


def _network(args: Arguments) -> NetworkSettings:
    if not args.linear_feature_columns and not args.dnn_feature_columns:
        raise errors.InvalidInput(
            "Either linear_feature_columns or dnn_feature_columns must be defined."
        )
    return NetworkSettings(
        args.dnn_hidden_units,
        args.dnn_feature_columns,
        args.dnn_activation_fn,
        args.dnn_dropout,
        args.batch_norm,
    )


def _check_hidden_units(network: NetworkSettings) -> None:
    if not network.hidden_units:
        raise errors.InvalidInput(
            "dnn_hidden_units must be defined when dnn_feature_columns is specified."
        )


def _v1_model_fn(head: Object, args: Arguments) -> ModelFn:
    network = _network(args)

    def model_fn(features: Nest, labels: Nest, mode: str, config: RunConfig) -> ModelSpec:
        of_inputs = args.input_layer_partitioner or arguments.input_partitioner(config)
        values, units = tuple(features.values()), head.logits_dimension
        logits: list[Tensor] = []
        trained: list[tuple[tf.train.Optimizer, str]] = []  # (optimizer, scope of its variables)
        if network.feature_columns:
            optimizer = arguments.v1_optimizer(args.dnn_optimizer, _DNN_RATE)
            _check_not_synchronous(optimizer)
            _check_hidden_units(network)
            of_layers = arguments.layer_partitioner(config)
            with tf.variable_scope("dnn", values=values, partitioner=of_layers) as scope:
                logits.append(v1_logits(network, units, features, mode, of_inputs))
            trained.append((optimizer, scope.name))
        if args.linear_feature_columns:
            optimizer = arguments.v1_optimizer(
                args.linear_optimizer, default_rate(_LINEAR_RATE, args.linear_feature_columns)
            )
            _check_not_synchronous(optimizer)
            with tf.variable_scope("linear", values=values, partitioner=of_inputs) as scope:
                combiner = args.linear_sparse_combiner
                logits.append(v1_linear(args.linear_feature_columns, units, combiner, features))
                add_layer_summaries(logits[-1], scope.name)
            trained.append((optimizer, scope.name))

        def train_op_fn(loss: Tensor) -> Op:
            keys = tf.GraphKeys.TRAINABLE_VARIABLES
            train_ops = [
                optimizer.minimize(loss, var_list=tf.get_collection(keys, scope=name))
                for optimizer, name in trained
            ]
            with tf.control_dependencies([tf.group(*train_ops)]):
                return tf.assign_add(tf.train.get_global_step(), 1).op

        return head.create_estimator_spec(
            features, mode, _sum(logits), labels, train_op_fn=train_op_fn
        )

    return model_fn


class _Trained(NamedTuple):
    logits: Tensor
    optimizer: Object  # None except in training
    variables: list[Variable]
    updates: list[Op]


def _keras_parts(
    args: Arguments, network: NetworkSettings, units: int, features: Nest, mode: str
) -> list[_Trained]:
    parts: list[_Trained] = []
    optimizer = None
    if network.feature_columns:
        if mode == ModeKeys.TRAIN:
            optimizer = arguments.keras_optimizer(args.dnn_optimizer, _DNN_RATE)
        _check_hidden_units(network)
        logits, variables, updates = keras_logits(network, units, features, mode)
        parts.append(_Trained(logits, optimizer, variables, updates))
    columns = args.linear_feature_columns
    if columns:
        if mode == ModeKeys.TRAIN:
            rate = default_rate(_LINEAR_RATE, columns)
            optimizer = arguments.keras_optimizer(args.linear_optimizer, rate)
        linear = keras_linear(columns, units, args.linear_sparse_combiner, features)
        add_layer_summaries(linear.logits, "linear")
        parts.append(_Trained(linear.logits, optimizer, [*linear.weights, *linear.bias], []))
    return parts


def _keras_model_fn(head: Object, args: Arguments) -> ModelFn:
    network = _network(args)
    loss_reduction = getattr(args, "loss_reduction", MEAN)

    def model_fn(features: Nest, labels: Nest, mode: str, config: RunConfig) -> ModelSpec:
        trained = _keras_parts(args, network, head.logits_dimension, features, mode)
        if mode == ModeKeys.TRAIN:
            # Only one optimizer may increment the global step.
            arguments.counting_steps(trained[0].optimizer)

        def train_op_fn(loss: Tensor) -> Op:
            loss = per_replica(loss, loss_reduction)
            ops: list[Op] = []
            for each in trained:
                ops += [*each.optimizer.get_updates(loss, each.variables), *each.updates]
            return tf.group(*ops)

        return head.create_estimator_spec(
            features, mode, _sum([each.logits for each in trained]), labels, train_op_fn=train_op_fn
        )

    return model_fn


def _sum(logits: list[Tensor]) -> Tensor:
    return logits[0] + logits[1] if len(logits) == 2 else logits[0]


def _check_not_synchronous(optimizer: Object) -> None:
    if isinstance(optimizer, tf.train.SyncReplicasOptimizer):
        raise errors.InvalidInput(
            "SyncReplicasOptimizer does not support multi optimizers case, and DNNLinearCombined "
            "has two optimizers. Use it with a DNN or a Linear estimator."
        )


@constructor(V1, _v1_model_fn, _CLASSIFIER, trains_all=False)
class DNNLinearCombinedClassifier(Estimator):
    """Classifies with a linear model, a neural network, or the sum of both models' logits.

    Args:
        linear_feature_columns, linear_sparse_combiner: as in `LinearClassifier`.
        linear_optimizer: as in `DNNClassifier`, but with a default learning rate of min(0.005, 1 /
            sqrt(number of columns)).
        dnn_optimizer: as in `DNNClassifier`, but with a default learning rate of 0.001.

    The other arguments are as in `DNNClassifier`; those of the network have the prefix dnn_.

    Raises:
        InvalidInput: an argument has an invalid value, or neither model has columns.
    """


@constructor(V2, _keras_model_fn, _CLASSIFIER)
class DNNLinearCombinedClassifierV2(EstimatorV2):
    """`DNNLinearCombinedClassifier` with optimizers as in `DNNClassifierV2`."""


@constructor(V1, _v1_model_fn, _ESTIMATOR, trains_all=False)
class DNNLinearCombinedEstimator(Estimator):
    """Trains a linear model and a neural network with any head that takes a `train_op_fn`.

    The other arguments are the same as in `DNNLinearCombinedClassifier`.
    """


@constructor(V2, _keras_model_fn, _ESTIMATOR)
class DNNLinearCombinedEstimatorV2(EstimatorV2):
    """`DNNLinearCombinedEstimator` with optimizers as in `DNNClassifierV2`.

    As in stock, a strategy with several replicas treats the loss as a mean, even if the head
    computes a sum.
    """


@constructor(V1, _v1_model_fn, _REGRESSOR, trains_all=False)
class DNNLinearCombinedRegressor(Estimator):
    """Predicts numbers; see `DNNRegressor` and `DNNLinearCombinedClassifier`."""


@constructor(V2, _keras_model_fn, _REGRESSOR)
class DNNLinearCombinedRegressorV2(EstimatorV2):
    """`DNNLinearCombinedRegressor` with optimizers as in `DNNClassifierV2`."""
