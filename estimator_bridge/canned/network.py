"""Defines the neural network of DNN models: feature columns, hidden layers and logits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned.constructor_arguments import check_new_columns
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.runtime.program_types import Columns, Features
from estimator_bridge.settings import quirks, render
from estimator_bridge.settings.row import TRAINING
from tf2_engine import log, tf_compat
from tf2_engine.graph_mode import do_not_convert
from tf2_engine.types import Object, Op, Tensor, Variable

keras = tf_compat.keras2()
Model: Object = keras.Model

Activation = Callable[[Tensor], Tensor]

_MOMENTUM = 0.999  # of batch normalization
_INPUT_SCOPE, _INPUT_NAME = "input_from_feature_columns", "input_layer"


@dataclasses.dataclass(frozen=True)
class NetworkSettings:
    """The arguments of a network, as in `DNNClassifier`; a network may have no columns."""

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
    """Lists the variables that a Keras optimizer trains: the network's, and shared tables.

    Stock never trains the tables of `shared_embeddings`, because they belong to no layer. With
    quirks="stock" these tables are not trained here either, and there is a warning.
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
    """The network. Attributes are set in stock's order, in which Keras lists the variables."""

    _kinds: Object
    _open_scope: Callable[[str], Object]

    def __init__(self, settings: NetworkSettings, units: int) -> None:
        if not isinstance(units, int):
            raise errors.InvalidInput(f"units must be an int.  Given type: {type(units)}.")
        super().__init__(name="dnn")
        columns: Object = settings.feature_columns
        widths = settings.hidden_units
        if not isinstance(widths, Sequence):
            raise errors.InvalidInput(
                f"hidden_units must be a list of the width of each hidden layer, got {widths!r}. "
                "Give [32, 16], say, or [] for a network without hidden layers."
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

    def _make_input(self, columns: Columns) -> Object:
        raise NotImplementedError

    def _inputs(self, features: Features, is_training: bool) -> Tensor:
        return self._input_layer(features, training=is_training)

    def _dense_names(self, scope: Object) -> dict[str, Object]:
        raise NotImplementedError

    def _norm_names(self, scope: Object, name: str) -> dict[str, str]:
        raise NotImplementedError


class _V1Network(_Network):
    _kinds = tf_compat.v1_layers()
    _open_scope = staticmethod(tf.variable_scope)

    def __init__(self, settings: NetworkSettings, units: int, input_partitioner: Object) -> None:
        super().__init__(settings, units)
        self._input_partitioner = input_partitioner

    @do_not_convert
    def call(self, features: Features, mode: str) -> Tensor:
        # Otherwise the model's own scope would appear twice in the names of ops and summaries.
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
