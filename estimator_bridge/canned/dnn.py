"""Estimators whose model is a neural network: the DNN classes of TensorFlow 1 and 2."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge.canned import optimizer_arguments, partitioners
from estimator_bridge.canned.heads.graph_heads import SUM, GraphRegressionHead, graph_class_head
from estimator_bridge.canned.heads.head_training import MEAN
from estimator_bridge.canned.heads.multi_class import class_head
from estimator_bridge.canned.heads.regression import RegressionHead
from estimator_bridge.canned.model_checks import check_features
from estimator_bridge.canned.network import (
    Activation,
    NetworkSettings,
    keras_logits,
    v1_logits,
)
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.runtime.estimator.base_estimator import Estimator, PathLike
from estimator_bridge.runtime.estimator.estimator_v2 import EstimatorV2
from estimator_bridge.runtime.program_types import ModelFn, ModelSpec
from tf2_engine.types import Nest, Object, Tensor

_V1_RATE = 0.05


def dnn_logit_fn_builder(
    units: int,
    hidden_units: Sequence[int],
    feature_columns: Sequence[Object],
    activation_fn: Activation | None,
    dropout: float | None,
    input_layer_partitioner: Object,
    batch_norm: bool,
) -> Callable[[Mapping[str, Tensor], str], Tensor]:
    """Returns a function of features and mode that returns the logits of a network.

    Its variables are those of TensorFlow 1, in the variable scope that is open when it is called.

    Args:
        units: how many logits there are.
        input_layer_partitioner: splits the variables of the feature columns.

    The other arguments are those of `DNNClassifier`.

    Raises:
        InvalidInput: `units` is not an int; raised when the function is called.
    """
    settings = NetworkSettings(hidden_units, feature_columns, activation_fn, dropout, batch_norm)

    def dnn_logit_fn(features: Mapping[str, Tensor], mode: str) -> Tensor:
        return v1_logits(settings, units, features, mode, input_layer_partitioner)

    return dnn_logit_fn


def _v1_model_fn(
    head: Object, settings: NetworkSettings, optimizer: Object, input_partitioner: Object
) -> ModelFn:
    def model_fn(features: Nest, labels: Nest, mode: str, config: RunConfig) -> ModelSpec:
        # In every mode, so that a wrong name is found by each.
        v1_optimizer = optimizer_arguments.v1_optimizer(optimizer, _V1_RATE)
        check_features(features)
        of_inputs = input_partitioner or partitioners.of_inputs(config)
        with tf.variable_scope(
            "dnn", values=tuple(features.values()), partitioner=partitioners.of_layers(config)
        ):
            logits = v1_logits(settings, head.logits_dimension, features, mode, of_inputs)
            return head.create_estimator_spec(
                features, mode, logits, labels, optimizer=v1_optimizer
            )

    return model_fn


def _keras_model_fn(head: Object, settings: NetworkSettings, optimizer: Object) -> ModelFn:
    def model_fn(features: Nest, labels: Nest, mode: str, config: RunConfig) -> ModelSpec:
        check_features(features)
        logits, variables, updates = keras_logits(settings, head.logits_dimension, features, mode)
        keras_optimizer = optimizer
        if mode == ModeKeys.TRAIN:
            uncounted = optimizer_arguments.keras_optimizer(optimizer)
            keras_optimizer = optimizer_arguments.counting_steps(uncounted)
        return head.create_estimator_spec(
            features,
            mode,
            logits,
            labels,
            optimizer=keras_optimizer,
            trainable_variables=variables,
            update_ops=updates,
        )

    return model_fn


class DNNClassifier(Estimator):
    """Classifies by a neural network; of `tf.compat.v1.estimator`.

    Args:
        hidden_units: the width of each hidden layer.
        feature_columns: dense feature columns.
        model_dir, config, warm_start_from: those of `Estimator`.
        n_classes: how many classes there are; 2 has one logit.
        weight_column: a numeric column, or its key, with a weight for each example.
        label_vocabulary: the labels as strings, in the order of their ids; None: they are ids.
        optimizer: an optimizer of `tf.compat.v1.train`, a function that returns one, or one of
            'Adagrad', 'Adam', 'Ftrl', 'RMSProp' and 'SGD', with a learning rate of 0.05.
        activation_fn: applied to the output of each hidden layer; None is none.
        dropout: the probability with which training drops a hidden output; None drops none.
        input_layer_partitioner: splits the variables of columns; None makes parts of 64 MiB or
            more, at most one for each parameter server.
        loss_reduction: one of `tf.compat.v1.losses.Reduction`, but NONE.
        batch_norm: whether the output of each hidden layer is normalized.

    Raises:
        InvalidInput: an argument is not possible.
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Sequence[Object],
        model_dir: PathLike | None = None,
        n_classes: int = 2,
        weight_column: Object = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Object = "Adagrad",
        activation_fn: Activation | None = tf.nn.relu,
        dropout: float | None = None,
        input_layer_partitioner: Object = None,
        config: RunConfig | None = None,
        warm_start_from: Object = None,
        loss_reduction: str = SUM,
        batch_norm: bool = False,
    ) -> None:
        head = graph_class_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        columns = tuple(feature_columns or ())
        settings = NetworkSettings(hidden_units, columns, activation_fn, dropout, batch_norm)
        model_fn = _v1_model_fn(head, settings, optimizer, input_layer_partitioner)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class DNNClassifierV2(EstimatorV2):
    """Classifies by a neural network; of `tf.estimator` in TensorFlow 2.

    Args:
        optimizer: an optimizer of `tf.keras.optimizers.legacy`, a function that returns one, or a
            name as for `DNNClassifier`, with the learning rate that Keras has for it.
        loss_reduction: one of `tf.losses.Reduction`, but NONE.

    The other arguments are those of `DNNClassifier`. Columns are of `tf.feature_column`.
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Sequence[Object],
        model_dir: PathLike | None = None,
        n_classes: int = 2,
        weight_column: Object = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Object = "Adagrad",
        activation_fn: Activation | None = tf.nn.relu,
        dropout: float | None = None,
        config: RunConfig | None = None,
        warm_start_from: Object = None,
        loss_reduction: str = MEAN,
        batch_norm: bool = False,
    ) -> None:
        head = class_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        columns = tuple(feature_columns or ())
        settings = NetworkSettings(hidden_units, columns, activation_fn, dropout, batch_norm)
        model_fn = _keras_model_fn(head, settings, optimizer)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class DNNEstimator(Estimator):
    """A neural network with any head; of `tf.compat.v1.estimator`.

    Args:
        head: turns logits into loss, predictions, metrics and a train op, and takes optimizers of
            `tf.compat.v1.train`.

    The other arguments are those of `DNNClassifier`.
    """

    def __init__(
        self,
        head: Object,
        hidden_units: Sequence[int],
        feature_columns: Sequence[Object],
        model_dir: PathLike | None = None,
        optimizer: Object = "Adagrad",
        activation_fn: Activation | None = tf.nn.relu,
        dropout: float | None = None,
        input_layer_partitioner: Object = None,
        config: RunConfig | None = None,
        warm_start_from: Object = None,
        batch_norm: bool = False,
    ) -> None:
        columns = tuple(feature_columns or ())
        settings = NetworkSettings(hidden_units, columns, activation_fn, dropout, batch_norm)
        model_fn = _v1_model_fn(head, settings, optimizer, input_layer_partitioner)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class DNNEstimatorV2(EstimatorV2):
    """A neural network with any head; of `tf.estimator` in TensorFlow 2.

    Args:
        head: a `Head`.

    The other arguments are those of `DNNClassifierV2`.
    """

    def __init__(
        self,
        head: Object,
        hidden_units: Sequence[int],
        feature_columns: Sequence[Object],
        model_dir: PathLike | None = None,
        optimizer: Object = "Adagrad",
        activation_fn: Activation | None = tf.nn.relu,
        dropout: float | None = None,
        config: RunConfig | None = None,
        warm_start_from: Object = None,
        batch_norm: bool = False,
    ) -> None:
        columns = tuple(feature_columns or ())
        settings = NetworkSettings(hidden_units, columns, activation_fn, dropout, batch_norm)
        model_fn = _keras_model_fn(head, settings, optimizer)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class DNNRegressor(Estimator):
    """Predicts numbers by a neural network; of `tf.compat.v1.estimator`.

    Args:
        label_dimension: how many numbers an example has.
        weight_column: a numeric column, or its key, with a weight for each example or number.

    The other arguments are those of `DNNClassifier`.
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Sequence[Object],
        model_dir: PathLike | None = None,
        label_dimension: int = 1,
        weight_column: Object = None,
        optimizer: Object = "Adagrad",
        activation_fn: Activation | None = tf.nn.relu,
        dropout: float | None = None,
        input_layer_partitioner: Object = None,
        config: RunConfig | None = None,
        warm_start_from: Object = None,
        loss_reduction: str = SUM,
        batch_norm: bool = False,
    ) -> None:
        head = GraphRegressionHead(label_dimension, weight_column, loss_reduction)
        columns = tuple(feature_columns or ())
        settings = NetworkSettings(hidden_units, columns, activation_fn, dropout, batch_norm)
        model_fn = _v1_model_fn(head, settings, optimizer, input_layer_partitioner)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class DNNRegressorV2(EstimatorV2):
    """Predicts numbers by a neural network; of `tf.estimator` in TensorFlow 2.

    Args:
        label_dimension, weight_column: those of `DNNRegressor`.

    The other arguments are those of `DNNClassifierV2`.
    """

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Sequence[Object],
        model_dir: PathLike | None = None,
        label_dimension: int = 1,
        weight_column: Object = None,
        optimizer: Object = "Adagrad",
        activation_fn: Activation | None = tf.nn.relu,
        dropout: float | None = None,
        config: RunConfig | None = None,
        warm_start_from: Object = None,
        loss_reduction: str = MEAN,
        batch_norm: bool = False,
    ) -> None:
        head = RegressionHead(label_dimension, weight_column, loss_reduction)
        columns = tuple(feature_columns or ())
        settings = NetworkSettings(hidden_units, columns, activation_fn, dropout, batch_norm)
        model_fn = _keras_model_fn(head, settings, optimizer)
        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)
