"""Creates the layers and other classes for each version of Keras, from the same code.

A model accepts only layers of its own version of Keras, and one program may use two versions.
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Mapping

import tensorflow as tf

from tf2_engine.keras import callbacks
from tf2_engine.keras.heads import class_heads, combined_heads, number_heads
from tf2_engine.keras.layer_bases import column_layers, linear_layer, sequence_layer
from tf2_engine.keras.layer_bases.embedding_layer import EmbeddingLayer
from tf2_engine.keras.layer_settings import registered
from tf2_engine.keras.rule_optimizer import RateByStepBase, RuleOptimizerBase
from tf2_engine.keras.table_model import TableModelBase
from tf2_engine.keras.trainer_model import TrainerModelBase
from tf2_engine.keras.weights import Keras2Weights, Keras3Weights

_BASES: Mapping[str, tuple[type, ...]] = {
    "layers.Layer": (
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
    ),
    "callbacks.Callback": (
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
    ),
    "optimizers.schedules.LearningRateSchedule": (RateByStepBase,),
    "optimizers.Optimizer": (RuleOptimizerBase,),
    "Model": (TableModelBase, TrainerModelBase),
}
"""Maps the name of each Keras class to our base classes that are combined with this class."""

_WITHOUT_CONFIG = ("callbacks.Callback", "Model")
"""Our subclasses of these are not registered, because they are not written into Keras' files."""


def layer_for(keras: types.ModuleType) -> type:
    """Returns the class `TPUEmbedding` for models of `keras`: `tf.keras`, `tf_keras` or Keras 3."""
    # Keras 3 has a variable class of its own; Keras 2 uses TensorFlow's.
    weights = Keras3Weights if hasattr(keras, "Variable") else Keras2Weights
    bases = (weights, EmbeddingLayer, keras.layers.Layer)
    return registered(keras, _subclass("TPUEmbedding", bases))


def preprocessing_for(keras: types.ModuleType) -> type:
    """Returns the class `Preprocessing` for models of `keras`; see `layer_for`."""
    return _derived(column_layers.PreprocessingLayer, "layers.Layer", keras)


def _column_embedding_for(keras: types.ModuleType) -> type:
    kind = _derived(column_layers.ColumnEmbeddingLayer, "layers.Layer", keras)
    kind._embedding_class = staticmethod(layer_for(keras))  # type: ignore[attr-defined]
    return kind


def _derived(base: type, keras_class: str, keras: types.ModuleType) -> type:
    kind = _subclass(_name(base), (base, operator.attrgetter(keras_class)(keras)))
    return kind if keras_class in _WITHOUT_CONFIG else registered(keras, kind)


def _name(base: type) -> str:
    return base.__name__.removesuffix("Layer").removesuffix("Base")


@functools.cache
def _subclass(name: str, bases: tuple[type, ...]) -> type:
    return type(name, bases, {"__module__": "tf2_engine.keras", "__doc__": bases[-2].__doc__})


_FACTORIES: Mapping[str, Callable[[types.ModuleType], type]] = {
    **{
        _name(base): functools.partial(_derived, base, keras_class)
        for keras_class, bases in _BASES.items()
        for base in bases
    },
    "ColumnEmbedding": _column_embedding_for,
    "Preprocessing": preprocessing_for,
    "TPUEmbedding": layer_for,
}


def __getattr__(name: str) -> type:
    if name not in _FACTORIES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _FACTORIES[name](tf.keras)
