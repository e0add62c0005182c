"""Estimators that add a linear model and a neural network: the DNNLinearCombined classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned import optimizer_arguments, partitioners
from estimator_bridge.canned.heads import head_training
from estimator_bridge.canned.heads.graph_heads import SUM, GraphRegressionHead, graph_class_head
from estimator_bridge.canned.heads.multi_class import class_head
from estimator_bridge.canned.heads.regression import RegressionHead
from estimator_bridge.canned.linear import default_rate
from estimator_bridge.canned.linear_model import keras_linear, v1_linear
from estimator_bridge.canned.model_checks import check_features
from estimator_bridge.canned.network import (
    Activation,
    NetworkSettings,
    add_layer_summaries,
    keras_logits,
    v1_logits,
)
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.runtime.estimator.base_estimator import Estimator, PathLike
from estimator_bridge.runtime.estimator.estimator_v2 import EstimatorV2
from estimator_bridge.runtime.program_types import ModelFn, ModelSpec
from tf2_engine.types import Nest, Object, Op, Tensor, Variable

_DNN_RATE = 0.001
_LINEAR_RATE = 0.005

Columns = Sequence[Object] | None


@dataclasses.dataclass(frozen=True)
class _Parts:
    """The linear model and the network; either has no columns where it is left out."""

    linear_columns: Columns
    linear_optimizer: Object
    sparse_combiner: str
    network: NetworkSettings
    dnn_optimizer: Object

    def __post_init__(self) -> None:
        if not self.linear_columns and not self.network.feature_columns:
            raise errors.InvalidInput(
                "Either linear_feature_columns or dnn_feature_columns must be defined."
            )

    def check_hidden_units(self) -> None:
        """Raises InvalidInput if there is a network without hidden layers."""
        if self.network.feature_columns and not self.network.hidden_units:
            raise errors.InvalidInput(
                "dnn_hidden_units must be defined when dnn_feature_columns is specified."
            )

    @property
    def linear_rate(self) -> float:
        """The learning rate of a linear optimizer that is given by its name."""
        return default_rate(_LINEAR_RATE, self.linear_columns or ())


def _v1_model_fn(head: Object, parts: _Parts, input_partitioner: Object) -> ModelFn:
    def model_fn(features: Nest, labels: Nest, mode: str, config: RunConfig) -> ModelSpec:
        check_features(features)
        of_inputs = input_partitioner or partitioners.of_inputs(config)
        values, units = tuple(features.values()), head.logits_dimension
        logits: list[Tensor] = []
        trained: list[tuple[tf.train.Optimizer, str]] = []  # and the scope of its variables
        if parts.network.feature_columns:
            optimizer = optimizer_arguments.v1_optimizer(parts.dnn_optimizer, _DNN_RATE)
            _check_not_synchronous(optimizer)
            parts.check_hidden_units()
            of_layers = partitioners.of_layers(config)
            with tf.variable_scope("dnn", values=values, partitioner=of_layers) as scope:
                logits.append(v1_logits(parts.network, units, features, mode, of_inputs))
            trained.append((optimizer, scope.name))
        if parts.linear_columns:
            optimizer = optimizer_arguments.v1_optimizer(parts.linear_optimizer, parts.linear_rate)
            _check_not_synchronous(optimizer)
            with tf.variable_scope("linear", values=values, partitioner=of_inputs) as scope:
                combiner = parts.sparse_combiner
                logits.append(v1_linear(parts.linear_columns, units, combiner, features))
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
    """The logits of a part, its Keras optimizer in training, and the variables that it updates."""

    logits: Tensor
    optimizer: Object
    variables: list[Variable]
    updates: list[Op]


def _keras_network(parts: _Parts, units: int, features: Nest, mode: str) -> _Trained:
    optimizer = None
    if mode == ModeKeys.TRAIN:
        optimizer = optimizer_arguments.keras_optimizer(parts.dnn_optimizer, _DNN_RATE)
    parts.check_hidden_units()
    logits, variables, updates = keras_logits(parts.network, units, features, mode)
    return _Trained(logits, optimizer, variables, updates)


def _keras_linear(parts: _Parts, units: int, features: Nest, mode: str) -> _Trained:
    optimizer = None
    if mode == ModeKeys.TRAIN:
        optimizer = optimizer_arguments.keras_optimizer(parts.linear_optimizer, parts.linear_rate)
    columns = parts.linear_columns or ()
    result = keras_linear(columns, units, parts.sparse_combiner, features)
    add_layer_summaries(result.logits, "linear")
    return _Trained(result.logits, optimizer, [*result.weights, *result.bias], [])


def _keras_model_fn(
    head: Object, parts: _Parts, loss_reduction: str = head_training.MEAN
) -> ModelFn:
    def model_fn(features: Nest, labels: Nest, mode: str, config: RunConfig) -> ModelSpec:
        check_features(features)
        units = head.logits_dimension
        trained: list[_Trained] = []
        if parts.network.feature_columns:
            trained.append(_keras_network(parts, units, features, mode))
        if parts.linear_columns:
            trained.append(_keras_linear(parts, units, features, mode))
        if mode == ModeKeys.TRAIN:
            # One of them counts the global step; that of the linear model has a step of its own.
            optimizer_arguments.counting_steps(trained[0].optimizer)

        def train_op_fn(loss: Tensor) -> Op:
            loss = head_training.per_replica(loss, loss_reduction)
            ops: list[Op] = []
            for each in trained:
                ops += [*each.optimizer.get_updates(loss, each.variables), *each.updates]
            return tf.group(*ops)

        return head.create_estimator_spec(
            features, mode, _sum([each.logits for each in trained]), labels, train_op_fn=train_op_fn
        )

    return model_fn


def _sum(logits: list[Tensor]) -> Tensor:
    """Returns the logits of the network, or those of the linear model, or their sum."""
    return logits[0] + logits[1] if len(logits) == 2 else logits[0]


def _check_not_synchronous(optimizer: Object) -> None:
    if isinstance(optimizer, tf.train.SyncReplicasOptimizer):
        raise errors.InvalidInput(
            "SyncReplicasOptimizer does not support multi optimizers case, which DNNLinearCombined "
            "is. Use it with a DNN or a Linear estimator."
        )


class DNNLinearCombinedClassifier(Estimator):
    """Classifies by a linear model and a neural network together; of `tf.compat.v1.estimator`.

    The logits are the sum of both. One of them may be left out.

    Args:
        model_dir, config, warm_start_from: those of `Estimator`.
        linear_feature_columns: dense or categorical columns of the linear model.
        linear_optimizer: an optimizer of `tf.compat.v1.train`, a function that returns one, or one
            of 'Adagrad', 'Adam', 'Ftrl', 'RMSProp' and 'SGD', with a learning rate of
            min(0.005, 1 / sqrt(columns)).
        dnn_feature_columns: dense columns of the network.
        dnn_optimizer: likewise, with a learning rate of 0.001.
        linear_sparse_combiner: that of `LinearClassifier`.

    The other arguments are those of `DNNClassifier`; here some of them begin with dnn_.

    Raises:
        InvalidInput: an argument is not possible; or there are no columns at all.
    """

    def __init__(
        self,
        model_dir: PathLike | None = None,
        linear_feature_columns: Columns = None,
        linear_optimizer: Object = "Ftrl",
        dnn_feature_columns: Columns = None,
        dnn_optimizer: Object = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Activation | None = tf.nn.relu,
        dnn_dropout: float | None = None,
        n_classes: int = 2,
        weight_column: Object = None,
        label_vocabulary: Sequence[str] | None = None,
        input_layer_partitioner: Object = None,
        config: RunConfig | None = None,
        warm_start_from: Object = None,
        loss_reduction: str = SUM,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        network = NetworkSettings(
            dnn_hidden_units, dnn_feature_columns, dnn_activation_fn, dnn_dropout, batch_norm
        )
        parts = _Parts(
            linear_feature_columns, linear_optimizer, linear_sparse_combiner, network, dnn_optimizer
        )
        head = graph_class_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        model_fn = _v1_model_fn(head, parts, input_layer_partitioner)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class DNNLinearCombinedClassifierV2(EstimatorV2):
    """Classifies by a linear model and a neural network together; of TensorFlow 2's `tf.estimator`.

    Args:
        linear_optimizer, dnn_optimizer: an optimizer of `tf.keras.optimizers.legacy`, a function
            that returns one, or a name, with the rates of `DNNLinearCombinedClassifier`.
        loss_reduction: one of `tf.losses.Reduction`, but NONE.

    The other arguments are those of `DNNLinearCombinedClassifier`. Columns are of
    `tf.feature_column`.
    """

    def __init__(
        self,
        model_dir: PathLike | None = None,
        linear_feature_columns: Columns = None,
        linear_optimizer: Object = "Ftrl",
        dnn_feature_columns: Columns = None,
        dnn_optimizer: Object = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Activation | None = tf.nn.relu,
        dnn_dropout: float | None = None,
        n_classes: int = 2,
        weight_column: Object = None,
        label_vocabulary: Sequence[str] | None = None,
        config: RunConfig | None = None,
        warm_start_from: Object = None,
        loss_reduction: str = head_training.MEAN,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        network = NetworkSettings(
            dnn_hidden_units, dnn_feature_columns, dnn_activation_fn, dnn_dropout, batch_norm
        )
        parts = _Parts(
            linear_feature_columns, linear_optimizer, linear_sparse_combiner, network, dnn_optimizer
        )
        head = class_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        model_fn = _keras_model_fn(head, parts, loss_reduction)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class DNNLinearCombinedEstimator(Estimator):
    """A linear model and a neural network with any head; of `tf.compat.v1.estimator`.

    Args:
        head: turns logits into loss, predictions, metrics and a train op; it is given a
            `train_op_fn`.

    The other arguments are those of `DNNLinearCombinedClassifier`.
    """

    def __init__(
        self,
        head: Object,
        model_dir: PathLike | None = None,
        linear_feature_columns: Columns = None,
        linear_optimizer: Object = "Ftrl",
        dnn_feature_columns: Columns = None,
        dnn_optimizer: Object = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Activation | None = tf.nn.relu,
        dnn_dropout: float | None = None,
        input_layer_partitioner: Object = None,
        config: RunConfig | None = None,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        network = NetworkSettings(
            dnn_hidden_units, dnn_feature_columns, dnn_activation_fn, dnn_dropout, batch_norm
        )
        parts = _Parts(
            linear_feature_columns, linear_optimizer, linear_sparse_combiner, network, dnn_optimizer
        )
        model_fn = _v1_model_fn(head, parts, input_layer_partitioner)
        super().__init__(model_fn, model_dir, config)


class DNNLinearCombinedEstimatorV2(EstimatorV2):
    """A linear model and a neural network with any head; of `tf.estimator` in TensorFlow 2.

    As in stock, under a strategy with several replicas the loss is that of the mean reduction,
    whatever the head's is.

    Args:
        head: a `Head`.

    The other arguments are those of `DNNLinearCombinedClassifierV2`.
    """

    def __init__(
        self,
        head: Object,
        model_dir: PathLike | None = None,
        linear_feature_columns: Columns = None,
        linear_optimizer: Object = "Ftrl",
        dnn_feature_columns: Columns = None,
        dnn_optimizer: Object = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Activation | None = tf.nn.relu,
        dnn_dropout: float | None = None,
        config: RunConfig | None = None,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        network = NetworkSettings(
            dnn_hidden_units, dnn_feature_columns, dnn_activation_fn, dnn_dropout, batch_norm
        )
        parts = _Parts(
            linear_feature_columns, linear_optimizer, linear_sparse_combiner, network, dnn_optimizer
        )
        model_fn = _keras_model_fn(head, parts)
        super().__init__(model_fn, model_dir, config)


class DNNLinearCombinedRegressor(Estimator):
    """Predicts numbers by a linear model and a neural network; of `tf.compat.v1.estimator`.

    Args:
        label_dimension: how many numbers an example has.
        weight_column: a numeric column, or its key, with a weight for each example or number.

    The other arguments are those of `DNNLinearCombinedClassifier`.
    """

    def __init__(
        self,
        model_dir: PathLike | None = None,
        linear_feature_columns: Columns = None,
        linear_optimizer: Object = "Ftrl",
        dnn_feature_columns: Columns = None,
        dnn_optimizer: Object = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Activation | None = tf.nn.relu,
        dnn_dropout: float | None = None,
        label_dimension: int = 1,
        weight_column: Object = None,
        input_layer_partitioner: Object = None,
        config: RunConfig | None = None,
        warm_start_from: Object = None,
        loss_reduction: str = SUM,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        network = NetworkSettings(
            dnn_hidden_units, dnn_feature_columns, dnn_activation_fn, dnn_dropout, batch_norm
        )
        parts = _Parts(
            linear_feature_columns, linear_optimizer, linear_sparse_combiner, network, dnn_optimizer
        )
        head = GraphRegressionHead(label_dimension, weight_column, loss_reduction)
        model_fn = _v1_model_fn(head, parts, input_layer_partitioner)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class DNNLinearCombinedRegressorV2(EstimatorV2):
    """Predicts numbers by a linear model and a neural network; of TensorFlow 2's `tf.estimator`.

    Args:
        label_dimension, weight_column: those of `DNNLinearCombinedRegressor`.

    The other arguments are those of `DNNLinearCombinedClassifierV2`.
    """

    def __init__(
        self,
        model_dir: PathLike | None = None,
        linear_feature_columns: Columns = None,
        linear_optimizer: Object = "Ftrl",
        dnn_feature_columns: Columns = None,
        dnn_optimizer: Object = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Activation | None = tf.nn.relu,
        dnn_dropout: float | None = None,
        label_dimension: int = 1,
        weight_column: Object = None,
        config: RunConfig | None = None,
        warm_start_from: Object = None,
        loss_reduction: str = head_training.MEAN,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        network = NetworkSettings(
            dnn_hidden_units, dnn_feature_columns, dnn_activation_fn, dnn_dropout, batch_norm
        )
        parts = _Parts(
            linear_feature_columns, linear_optimizer, linear_sparse_combiner, network, dnn_optimizer
        )
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        model_fn = _keras_model_fn(head, parts, loss_reduction)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)
