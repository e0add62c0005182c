"""Estimators whose model is a recurrent network over sequence columns (TensorFlow 2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.canned import constructor_arguments as arguments
from estimator_bridge.canned.constructor_arguments import V2, Arguments, constructor
from estimator_bridge.canned.dnn import trained_variables
from estimator_bridge.canned.heads.composed_heads import SequentialHead
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.runtime.estimator.base_estimator import Estimator
from estimator_bridge.runtime.program_types import Columns, Features, ModelFn, ModelSpec
from tf2_engine import tf_compat
from tf2_engine.graph_mode import do_not_convert
from tf2_engine.types import Nest, Object, Tensor

keras = tf_compat.keras2()
Model: Object = keras.Model

_RATE, _CLIP_NORM = 0.05, 5.0
_LAYERS = {
    "lstm": (keras.layers.LSTM, keras.layers.LSTMCell),
    "gru": (keras.layers.GRU, keras.layers.GRUCell),
    "simple_rnn": (keras.layers.SimpleRNN, keras.layers.SimpleRNNCell),
}
_DEFAULT_CELL = "simple_rnn"

USE_DEFAULT = object()
"""The default of `cell_type`, which means that the program gave no cell type."""


_NETWORK = (
    "sequence_feature_columns context_feature_columns units cell_type rnn_cell_fn return_sequences "
    "model_dir"
)
_ESTIMATOR = f"head {_NETWORK} optimizer config"
_CLASSIFIER = f"{_NETWORK} {arguments.CLASSIFIER} optimizer loss_reduction sequence_mask config"


def _model_fn(head: Object, args: Arguments) -> ModelFn:
    if args.return_sequences and hasattr(args, "n_classes"):
        head = SequentialHead(head, args.sequence_mask, args.weight_column)
    if args.return_sequences and not hasattr(head, "input_sequence_mask_key"):
        raise errors.InvalidInput(
            "Provided head must be a `_SequentialHead` object when `return_sequences` is set "
            f"to True; it is {head!r}."
        )
    if args.rnn_cell_fn and (args.units or args.cell_type is not USE_DEFAULT):
        raise errors.InvalidInput(
            "units and cell_type must not be specified when using rnn_cell_fn, which returns the "
            "cells."
        )
    columns, context = args.sequence_feature_columns, args.context_feature_columns

    def model_fn(features: Nest, labels: Nest, mode: str, config: RunConfig) -> ModelSpec:
        layer = _recurrent_layer(
            args.rnn_cell_fn, args.units, args.cell_type, args.return_sequences
        )
        network = _RecurrentNetwork(layer, head.logits_dimension, columns, context)
        is_training = mode == ModeKeys.TRAIN
        # As in stock, the optimizer is created first, so that random ops get the same seeds.
        optimizer = _optimizer(args.optimizer) if is_training else None
        logits, mask = network(features, training=is_training)
        if args.return_sequences:
            features = {head.input_sequence_mask_key: mask, **features}
        return head.create_estimator_spec(
            features,
            mode,
            logits,
            labels,
            optimizer=optimizer,
            trainable_variables=trained_variables(network, [*columns, *(context or ())]),
            update_ops=network.updates,
        )

    return model_fn


@constructor(V2, _model_fn, _ESTIMATOR, optimizer="Adagrad", cell_type=USE_DEFAULT)
class RNNEstimator(Estimator):
    """Trains a recurrent network with any head (`tf.estimator.experimental`).

    Args:
        sequence_feature_columns: sequence columns; their values at a step are the network's input
            at that step.
        context_feature_columns: dense columns, appended to the input of every step.
        units: the width of each recurrent layer; may be a single number if `cell_type` is a name.
        cell_type: 'simple_rnn' (the default), 'lstm', 'gru', or a class of cells.
        rnn_cell_fn: a function that returns a cell or a list of cells; cannot be combined with
            units and cell_type.
        return_sequences: True gives logits for every step, which a sequential head needs; False
            gives logits for the last step.
        optimizer: as in `DNNClassifierV2`, but an optimizer that is given by name has a learning
            rate of 0.05 and clips gradients to a norm of 5.

    Raises:
        InvalidInput: the cells are given in two ways, or `return_sequences` is set and the head is
            not sequential.
    """


@constructor(V2, _model_fn, _CLASSIFIER, optimizer="Adagrad", cell_type=USE_DEFAULT)
class RNNClassifier(RNNEstimator):
    """Classifies whole sequences, or each step of them with `return_sequences`.

    `sequence_mask` is the key, in features and predictions, of a mask that is True for steps that
    are not padding. The other arguments are as in `RNNEstimator` and `DNNClassifierV2`.
    """


class _RecurrentNetwork(Model):
    def __init__(
        self, layer: Object, units: int, sequence_columns: Columns, context: Columns | None
    ) -> None:
        super().__init__(name="rnn_model")
        self._sequence_features_layer = keras.experimental.SequenceFeatures(sequence_columns)
        self._dense_features_layer = None
        if context:
            v1_layers = tf_compat.keras2_v1().layers
            self._dense_features_layer = v1_layers.DenseFeatures(context)
        self._rnn_layer = layer
        self._logits_layer = keras.layers.Dense(units=units, name="logits")

    @do_not_convert
    def call(self, inputs: Features, training: bool = False) -> tuple[Tensor, Tensor]:
        with tf.name_scope("sequence_input_layer"):
            values, length = self._sequence_features_layer(inputs, training=training)
            tf.summary.histogram("sequence_length", length)
            if self._dense_features_layer is not None:
                context = self._dense_features_layer(inputs, training=training)
                values = tf_compat.with_context(context, values)
        mask = tf.sequence_mask(length)
        outputs = self._rnn_layer(values, mask=mask, training=training)
        return self._logits_layer(outputs), mask


def _recurrent_layer(
    rnn_cell_fn: Callable[[], Object] | None,
    units: int | Sequence[int] | None,
    cell_type: Object,
    return_sequences: bool,
) -> Object:
    known = isinstance(cell_type, str) and cell_type in _LAYERS
    if known and isinstance(units, int):
        return _LAYERS[cell_type][0](units=units, return_sequences=return_sequences)
    if rnn_cell_fn is None:
        kind = _DEFAULT_CELL if cell_type is USE_DEFAULT else cell_type
        if not isinstance(units, Sequence):
            raise errors.InvalidInput(
                f"units must list the width of each layer, got {units!r}. Give, for example, "
                "[32, 16]; or give a number, and 'simple_rnn', 'lstm' or 'gru' as `cell_type`."
            )
        cells = [_cell(width, kind) for width in units]
        cell = cells[0] if len(cells) == 1 else cells
    else:
        cell = rnn_cell_fn()
    return keras.layers.RNN(cell=cell, return_sequences=return_sequences)


def _cell(units: int, cell_type: Object) -> Object:
    if isinstance(cell_type, str) and cell_type in _LAYERS:
        cell_type = _LAYERS[cell_type][1]
    if not callable(cell_type):
        raise errors.InvalidInput(
            "`cell_type` should be a class producing a RNN cell, or a string specifying the cell "
            f"type. Supported strings are: {list(_LAYERS)}."
        )
    cell = cell_type(units=units)
    if hasattr(cell, "_enable_caching_device"):
        cell._enable_caching_device = True
    if not hasattr(cell, "call") or not hasattr(cell, "state_size"):
        raise errors.InvalidInput("RNN cell should have a `call` and `state_size` method.")
    return cell


def _optimizer(optimizer: Object) -> Object:
    keras_optimizer = arguments.keras_optimizer(optimizer, _RATE)
    if isinstance(optimizer, str):
        keras_optimizer.clipnorm = _CLIP_NORM
    return arguments.counting_steps(keras_optimizer)
