"""Estimators whose model is a neural network: the DNN classes of TensorFlow 1 and 2."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge.canned import constructor_arguments as arguments
from estimator_bridge.canned.constructor_arguments import V1, V2, Arguments, constructor
from estimator_bridge.canned.network import Activation, NetworkSettings, keras_logits, v1_logits
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.runtime.estimator.base_estimator import Estimator, EstimatorV2
from estimator_bridge.runtime.program_types import Columns, Features, ModelFn, ModelSpec
from tf2_engine.types import Nest, Object, Tensor

_V1_RATE = 0.05

_OF_LABELS = (
    "hidden_units feature_columns model_dir {} optimizer activation_fn dropout "
    "input_layer_partitioner config warm_start_from loss_reduction batch_norm"
)
_CLASSIFIER = _OF_LABELS.format(arguments.CLASSIFIER)
_ESTIMATOR = (
    "head hidden_units feature_columns model_dir optimizer activation_fn dropout "
    "input_layer_partitioner config warm_start_from batch_norm"
)
_REGRESSOR = _OF_LABELS.format(arguments.REGRESSOR)


def dnn_logit_fn_builder(
    units: int,
    hidden_units: Sequence[int],
    feature_columns: Columns,
    activation_fn: Activation | None,
    dropout: float | None,
    input_layer_partitioner: Object,
    batch_norm: bool,
) -> Callable[[Features, str], Tensor]:
    """Makes a function that computes a network's logits, [batch, units], from features and mode.

    The returned function creates variables in the open variable scope. The arguments are as in
    `DNNClassifier`.
    """
    settings = NetworkSettings(hidden_units, feature_columns, activation_fn, dropout, batch_norm)

    def dnn_logit_fn(features: Features, mode: str) -> Tensor:
        return v1_logits(settings, units, features, mode, input_layer_partitioner)

    return dnn_logit_fn


def _settings(args: Arguments) -> NetworkSettings:
    columns = tuple(args.feature_columns or ())
    return NetworkSettings(
        args.hidden_units, columns, args.activation_fn, args.dropout, args.batch_norm
    )


def _v1_model_fn(head: Object, args: Arguments) -> ModelFn:
    settings = _settings(args)

    def model_fn(features: Nest, labels: Nest, mode: str, config: RunConfig) -> ModelSpec:
        # The optimizer is created in every mode, so that every mode reports a wrong name.
        optimizer = arguments.v1_optimizer(args.optimizer, _V1_RATE)
        arguments.check_features(features)
        of_inputs = args.input_layer_partitioner or arguments.input_partitioner(config)
        with tf.variable_scope(
            "dnn", values=tuple(features.values()), partitioner=arguments.layer_partitioner(config)
        ):
            logits = v1_logits(settings, head.logits_dimension, features, mode, of_inputs)
            return head.create_estimator_spec(features, mode, logits, labels, optimizer=optimizer)

    return model_fn


def _keras_model_fn(head: Object, args: Arguments) -> ModelFn:
    settings = _settings(args)

    def model_fn(features: Nest, labels: Nest, mode: str, config: RunConfig) -> ModelSpec:
        arguments.check_features(features)
        logits, variables, updates = keras_logits(settings, head.logits_dimension, features, mode)
        optimizer = args.optimizer
        if mode == ModeKeys.TRAIN:
            optimizer = arguments.counting_steps(arguments.keras_optimizer(optimizer))
        return head.create_estimator_spec(
            features,
            mode,
            logits,
            labels,
            optimizer=optimizer,
            trainable_variables=variables,
            update_ops=updates,
        )

    return model_fn


@constructor(V1, _v1_model_fn, _CLASSIFIER, optimizer="Adagrad")
class DNNClassifier(Estimator):
    """Classifies with a neural network (`tf.compat.v1.estimator`).

    Args:
        hidden_units: the width of each hidden layer.
        feature_columns: dense feature columns.
        model_dir, config, warm_start_from: as in `Estimator`.
        n_classes: the number of classes; for 2 classes the network has one logit.
        weight_column: a numeric column, or its key, with a weight for each example.
        label_vocabulary: the labels as strings, in the order of the class ids. None if labels are
            ids.
        optimizer: an optimizer of `tf.compat.v1.train`, a function that returns one, or the name
            'Adagrad', 'Adam', 'Ftrl', 'RMSProp' or 'SGD', which has a learning rate of 0.05.
        activation_fn: applied to the output of each hidden layer; may be None.
        dropout: the probability with which training drops a hidden output; may be None.
        input_layer_partitioner: splits the variables of columns into parts. None makes parts of at
            least 64 MiB, and at most as many parts as there are parameter servers.
        loss_reduction: one of `tf.compat.v1.losses.Reduction`, but not NONE.
        batch_norm: whether to normalize the output of each hidden layer, after dropout.
    """


@constructor(V2, _keras_model_fn, _CLASSIFIER, optimizer="Adagrad")
class DNNClassifierV2(EstimatorV2):
    """Classifies with a neural network (`tf.estimator` in TensorFlow 2).

    Args:
        feature_columns: dense columns of `tf.feature_column`.
        optimizer: an optimizer of `tf.keras.optimizers.legacy`, a function that returns one, or a
            name as in `DNNClassifier`, with Keras's default learning rate.
        loss_reduction: one of `tf.losses.Reduction`, but not NONE.

    The other arguments are the same as in `DNNClassifier`.
    """


@constructor(V1, _v1_model_fn, _ESTIMATOR, optimizer="Adagrad")
class DNNEstimator(Estimator):
    """Trains a neural network with any head (`tf.compat.v1.estimator`).

    Args:
        head: computes loss, predictions, metrics and a train op from logits. It must take
            optimizers of `tf.compat.v1.train`.

    The other arguments are the same as in `DNNClassifier`.
    """


@constructor(V2, _keras_model_fn, _ESTIMATOR, optimizer="Adagrad")
class DNNEstimatorV2(EstimatorV2):
    """Trains a neural network with any `Head`; other arguments are as in `DNNClassifierV2`."""


@constructor(V1, _v1_model_fn, _REGRESSOR, optimizer="Adagrad")
class DNNRegressor(Estimator):
    """Predicts numbers with a neural network (`tf.compat.v1.estimator`).

    Args:
        label_dimension: how many numbers to predict for an example.
        weight_column: a numeric column, or its key, with a weight for each example or each number.

    The other arguments are the same as in `DNNClassifier`.
    """


@constructor(V2, _keras_model_fn, _REGRESSOR, optimizer="Adagrad")
class DNNRegressorV2(EstimatorV2):
    """Predicts numbers with a neural network.

    The arguments are as in `DNNRegressor`, with optimizers and reductions as in `DNNClassifierV2`.
    """
