"""Creates the layers for each version of Keras, from the same code.

A model accepts only layers of its own version of Keras, and one program may use two versions.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping

import tensorflow as tf

from tf2_engine.keras import callbacks
from tf2_engine.keras.heads import class_heads, combined_heads, number_heads
from tf2_engine.keras.layer_bases import column_layers, linear_layer, sequence_layer
from tf2_engine.keras.layer_bases.column_layers import Keras3Outputs, PreprocessingLayer
from tf2_engine.keras.layer_bases.embedding_layer import EmbeddingLayer
from tf2_engine.keras.layer_settings import registered
from tf2_engine.keras.rule_optimizer import RateByStepBase, RuleOptimizerBase
from tf2_engine.keras.table_model import TableModelBase
from tf2_engine.keras.trainer_model import TrainerModelBase
from tf2_engine.keras.weights import Keras2Weights, Keras3Weights

_LAYERS = (
    linear_layer.BaselineLayer,
    class_heads.BinaryClassHeadLayer,
    class_heads.MultiClassHeadLayer,
    column_layers.DenseFeaturesLayer,
    sequence_layer.GRUCellBase,
    linear_layer.LinearFeaturesLayer,
    combined_heads.MultiHeadLayer,
    class_heads.MultiLabelHeadLayer,
    number_heads.LogisticRegressionHeadLayer,
    number_heads.PoissonRegressionHeadLayer,
    number_heads.RegressionHeadLayer,
    combined_heads.SequenceHeadLayer,
    sequence_layer.SequenceFeaturesLayer,
)
_CALLBACKS = (
    callbacks.BestExporterBase,
    callbacks.LatestExporterBase,
    callbacks.StepLogBase,
    callbacks.TableSummaryCallbackBase,
    callbacks.StopAtStepBase,
    callbacks.StopIfHigherBase,
    callbacks.StopIfLowerBase,
    callbacks.StopIfNaNBase,
    callbacks.StopIfNoDecreaseBase,
    callbacks.StopIfNoIncreaseBase,
    callbacks.StopWhenBase,
)


def layer_for(keras: types.ModuleType) -> type:
    """Returns the class `TPUEmbedding` for models of `keras`: `tf.keras`, `tf_keras` or Keras 3."""
    # Keras 3 has its own class of variables; Keras 2 uses TensorFlow's.
    variable = getattr(keras, "Variable", None)
    weights = Keras2Weights if variable is None else Keras3Weights
    bases = (weights, EmbeddingLayer, keras.layers.Layer)
    return registered(keras, _subclass("TPUEmbedding", bases, variable))


def preprocessing_for(keras: types.ModuleType) -> type:
    """Returns the class `Preprocessing` for models of `keras`; see `layer_for`."""
    outputs = (Keras3Outputs,) if hasattr(keras, "Variable") else ()
    bases = (*outputs, PreprocessingLayer, keras.layers.Layer)
    return registered(keras, _subclass("Preprocessing", bases))


def column_embedding_for(keras: types.ModuleType) -> type:
    layer_class = _registered(keras, column_layers.ColumnEmbeddingLayer, keras.layers.Layer)
    layer_class._embedding_class = staticmethod(layer_for(keras))  # type: ignore[attr-defined]
    return layer_class


def _registered(keras: types.ModuleType, base: type, keras_base: type) -> type:
    return registered(keras, _subclass(_name(base), (base, keras_base)))


def _name(base: type) -> str:
    return base.__name__.removesuffix("Layer").removesuffix("Base")


def _layer(base: type) -> Callable[[types.ModuleType], type]:
    return lambda keras: _registered(keras, base, keras.layers.Layer)


def _callback(base: type) -> Callable[[types.ModuleType], type]:
    return lambda keras: _subclass(_name(base), (base, keras.callbacks.Callback))


@functools.cache
def _subclass(name: str, bases: tuple[type, ...], variable: type | None = None) -> type:
    members = {
        "__module__": "tf2_engine.keras",
        "__doc__": bases[-2].__doc__,
        "_keras_variable": variable,
    }
    return type(name, bases, members)


_FACTORIES: Mapping[str, Callable[[types.ModuleType], type]] = {
    **{_name(base): _layer(base) for base in _LAYERS},
    **{_name(base): _callback(base) for base in _CALLBACKS},
    "ColumnEmbedding": column_embedding_for,
    "Preprocessing": preprocessing_for,
    "RateByStep": lambda keras: _registered(
        keras, RateByStepBase, keras.optimizers.schedules.LearningRateSchedule
    ),
    "RuleOptimizer": lambda keras: _registered(
        keras, RuleOptimizerBase, keras.optimizers.Optimizer
    ),
    "TPUEmbedding": layer_for,
    "TableModel": lambda keras: _subclass("TableModel", (TableModelBase, keras.Model)),
    "TrainerModel": lambda keras: _subclass("TrainerModel", (TrainerModelBase, keras.Model)),
}


def __getattr__(name: str) -> type:
    if name not in _FACTORIES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _FACTORIES[name](tf.keras)
