"""The DNN estimators of TensorFlow 1 and 2, and the neural network that is their model."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned import constructor_arguments as arguments
from estimator_bridge.canned.constructor_arguments import (
    V1,
    V2,
    Arguments,
    check_new_columns,
    constructor,
)
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.runtime.estimator.base_estimator import Estimator, EstimatorV2
from estimator_bridge.runtime.program_types import Columns, Features, ModelFn, ModelSpec
from estimator_bridge.settings import quirks, render
from estimator_bridge.settings.row import TRAINING
from tf2_engine import log, tf_compat
from tf2_engine.graph_mode import do_not_convert
from tf2_engine.types import Nest, Object, Op, Tensor, Variable

keras = tf_compat.keras2()
Model: Object = keras.Model

Activation = Callable[[Tensor], Tensor]

_MOMENTUM = 0.999  # of batch normalization
_INPUT_SCOPE, _INPUT_NAME = "input_from_feature_columns", "input_layer"


@dataclasses.dataclass(frozen=True)
class NetworkSettings:
    """The arguments of `DNNClassifier` that describe the network; there may be no columns."""

    hidden_units: Sequence[int] | None
    feature_columns: Columns | None
    activation_fn: Activation | None = tf.nn.relu
    dropout: float | None = None
    batch_norm: bool = False


def v1_logits(
    settings: NetworkSettings, units: int, features: Features, mode: str, input_partitioner: Object
) -> Tensor:
    return _V1Network(settings, units, input_partitioner)(features, mode)


def keras_logits(
    settings: NetworkSettings, units: int, features: Features, mode: str
) -> tuple[Tensor, list[Variable], list[Op]]:
    network = _KerasNetwork(settings, units)
    logits = network(features, mode)
    return logits, trained_variables(network, settings.feature_columns or ()), network.updates


def trained_variables(network: Object, columns: Columns) -> list[Variable]:
    """Lists the variables that a Keras optimizer trains: the network's own, and shared tables.

    Stock never trains the tables of `shared_embeddings`, because they belong to no layer. With
    quirks="stock", the list omits these tables, too, and a warning says so.
    """
    creators = {getattr(column, "shared_embedding_column_creator", None) for column in columns}
    tables = [creator.embedding_weights for creator in creators if creator is not None]
    variables = [*network.trainable_variables]
    if not tables:
        return variables
    if quirks.default_quirks() == "documented":
        return [*variables, *sorted(tables, key=lambda table: table.op.name)]
    names = ", ".join(sorted(table.op.name for table in tables))
    log.warning("%s", render.warning("canned_shared", TRAINING, "stock", where="", value=names))
    return variables


class _Network(Model):
    # Keras lists variables in the order of the attributes below, which are in stock's order.

    _kinds: Object
    _open_scope: Callable[[str], Object]
    _make_input: Callable[[Columns], Object]
    _dense_names: Callable[[Object], dict[str, Object]]
    _norm_names: Callable[[Object, str], dict[str, str]]

    def __init__(self, settings: NetworkSettings, units: int) -> None:
        if not isinstance(units, int):
            raise errors.InvalidInput(f"units must be an int.  Given type: {type(units)}.")
        super().__init__(name="dnn")
        columns: Object = settings.feature_columns
        widths = settings.hidden_units
        if not isinstance(widths, Sequence):
            raise errors.InvalidInput(
                f"hidden_units must list the width of each hidden layer, got {widths!r}. Give, for "
                "example, [32, 16], or [] for a network without hidden layers."
            )
        self._input_layer = self._make_input(columns)
        self._hidden_layers: list[Object] = []
        self._dropout_layers: list[Object] = []
        self._batch_norm_layers: list[Object] = []
        self._tags: list[str] = []
        for number, width in enumerate(widths):
            self._add_hidden(number, width, settings)
        with self._open_scope("logits") as scope:
            self._logits_layer = self._dense(scope, units, None)

    def _add_hidden(self, number: int, width: int, settings: NetworkSettings) -> None:
        with self._open_scope(f"hiddenlayer_{number}") as scope:
            self._hidden_layers.append(self._dense(scope, width, settings.activation_fn))
            if settings.dropout is not None:
                self._dropout_layers.append(self._kinds.Dropout(rate=settings.dropout))
            if settings.batch_norm:
                names = self._norm_names(scope, f"batchnorm_{number}")
                norm = self._kinds.BatchNormalization(momentum=_MOMENTUM, **names)
                self._batch_norm_layers.append(norm)

    def _dense(self, scope: Object, width: int, activation: Activation | None) -> Object:
        names = self._dense_names(scope)
        self._tags.append(str(getattr(names["name"], "name", names["name"])))
        return self._kinds.Dense(
            units=width,
            activation=activation,
            kernel_initializer=tf.glorot_uniform_initializer(),
            **names,
        )

    @do_not_convert
    def call(self, features: Features, mode: str) -> Tensor:
        is_training = mode == ModeKeys.TRAIN
        output = self._inputs(features, is_training)
        for number, layer in enumerate(self._hidden_layers):
            output = layer(output)
            if is_training and self._dropout_layers:
                output = self._dropout_layers[number](output, training=True)
            if self._batch_norm_layers:
                output = self._batch_norm_layers[number](output, training=is_training)
            add_layer_summaries(output, self._tags[number])
        logits = self._logits_layer(output)
        add_layer_summaries(logits, self._tags[-1])
        return logits

    def _inputs(self, features: Features, is_training: bool) -> Tensor:
        return self._input_layer(features, training=is_training)


class _V1Network(_Network):
    _kinds = tf_compat.v1_layers()
    _open_scope = staticmethod(tf.variable_scope)

    def __init__(self, settings: NetworkSettings, units: int, input_partitioner: Object) -> None:
        super().__init__(settings, units)
        self._input_partitioner = input_partitioner

    @do_not_convert
    def call(self, features: Features, mode: str) -> Tensor:
        # Leaves the scope that Keras has opened for the model. Otherwise this scope would appear
        # twice in the names of ops and summaries.
        outer = tf_compat.name_scope_now().rsplit("/", 1)[0]
        with tf.name_scope(f"{outer}/"):
            return super().call(features, mode)

    def _make_input(self, columns: Columns) -> Object:
        if tf_compat.is_new_column(columns):
            layers = tf_compat.keras2_v1().layers
            return layers.DenseFeatures(feature_columns=columns, name=_INPUT_NAME)
        return tf_compat.V1InputLayer(
            feature_columns=columns, name=_INPUT_NAME, create_scope_now=False
        )

    def _inputs(self, features: Features, is_training: bool) -> Tensor:
        with tf.variable_scope(_INPUT_SCOPE, partitioner=self._input_partitioner):
            if isinstance(self._input_layer, tf_compat.V1InputLayer):
                return self._input_layer(features)
            return super()._inputs(features, is_training)

    def _dense_names(self, scope: Object) -> dict[str, Object]:
        return {"name": scope, "_scope": scope}

    def _norm_names(self, scope: Object, name: str) -> dict[str, str]:
        return {"name": name, "_scope": name}


class _KerasNetwork(_Network):
    _kinds = keras.layers
    _open_scope = staticmethod(tf.name_scope)

    def _make_input(self, columns: Columns) -> Object:
        check_new_columns(columns)
        with tf.name_scope(_INPUT_SCOPE) as scope:
            return keras.layers.DenseFeatures(feature_columns=columns, name=scope + _INPUT_NAME)

    def _dense_names(self, scope: Object) -> dict[str, Object]:
        return {"name": scope.removesuffix("/")}

    def _norm_names(self, scope: Object, name: str) -> dict[str, str]:
        return {"name": f"{scope}{name}"}


def add_layer_summaries(value: Tensor, tag: str) -> None:
    tf.summary.scalar(f"{tag}/fraction_of_zero_values", tf.nn.zero_fraction(value))
    tf.summary.histogram(f"{tag}/activation", value)


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

    The function creates variables in the open variable scope. For the arguments, see
    `DNNClassifier`.
    """
    settings = NetworkSettings(hidden_units, feature_columns, activation_fn, dropout, batch_norm)
    return functools.partial(v1_logits, settings, units, input_partitioner=input_layer_partitioner)


def _settings(args: Arguments) -> NetworkSettings:
    columns = tuple(args.feature_columns or ())
    return NetworkSettings(
        args.hidden_units, columns, args.activation_fn, args.dropout, args.batch_norm
    )


def _v1_model_fn(head: Object, args: Arguments) -> ModelFn:
    settings = _settings(args)

    def model_fn(features: Nest, labels: Nest, mode: str, config: RunConfig) -> ModelSpec:
        # The optimizer is created in every mode, so that a wrong name is always reported.
        optimizer = arguments.v1_optimizer(args.optimizer, _V1_RATE)
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
    """Classifies with a neural network.

    Args:
        hidden_units: the width of each hidden layer.
        feature_columns: dense feature columns.
        model_dir, config, warm_start_from: as in `Estimator`.
        n_classes: the number of classes. For 2 classes the network has only one logit.
        weight_column: a numeric column, or its key, with a weight for each example.
        label_vocabulary: the labels as strings, in the order of the class ids. None if labels are
            ids.
        optimizer: an optimizer of `tf.compat.v1.train`, a function that returns one, or the name
            'Adagrad', 'Adam', 'Ftrl', 'RMSProp' or 'SGD'. An optimizer that is given by name has a
            learning rate of 0.05.
        activation_fn: applied to the output of each hidden layer; may be None.
        dropout: the probability with which training drops a hidden output; may be None.
        input_layer_partitioner: splits the variables of columns into parts. None means parts of at
            least 64 MiB, and at most as many parts as there are parameter servers.
        loss_reduction: one of `tf.compat.v1.losses.Reduction`, but not NONE.
        batch_norm: whether to normalize the output of each hidden layer, after dropout.
    """


@constructor(V2, _keras_model_fn, _CLASSIFIER, optimizer="Adagrad")
class DNNClassifierV2(EstimatorV2):
    """`DNNClassifier` for TensorFlow 2, with dense columns of `tf.feature_column`.

    Args:
        optimizer: an optimizer of `tf.keras.optimizers.legacy`, a function that returns one, or a
            name as in `DNNClassifier`, with Keras's default learning rate.
        loss_reduction: one of `tf.losses.Reduction`, but not NONE.
    """


@constructor(V1, _v1_model_fn, _ESTIMATOR, optimizer="Adagrad")
class DNNEstimator(Estimator):
    """Trains a neural network with any head that takes optimizers of `tf.compat.v1.train`.

    The other arguments are the same as in `DNNClassifier`.
    """


@constructor(V2, _keras_model_fn, _ESTIMATOR, optimizer="Adagrad")
class DNNEstimatorV2(EstimatorV2):
    """Trains a neural network with any `Head`; other arguments are as in `DNNClassifierV2`."""


@constructor(V1, _v1_model_fn, _REGRESSOR, optimizer="Adagrad")
class DNNRegressor(Estimator):
    """Predicts `label_dimension` numbers for each example with a neural network.

    The other arguments are as in `DNNClassifier`, but each number may have a weight of its own.
    """


@constructor(V2, _keras_model_fn, _REGRESSOR, optimizer="Adagrad")
class DNNRegressorV2(EstimatorV2):
    """`DNNRegressor` with optimizers and reductions as in `DNNClassifierV2`."""
