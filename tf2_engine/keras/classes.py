"""The layers as subclasses of the `Layer` of each Keras: the same code over another base class.

`tf.keras` is Keras 2 on TensorFlow 2.15, and on later versions Keras 3, or tf_keras with
TF_USE_LEGACY_KERAS=1. A model takes layers of its own Keras alone, and there may be two of them
in one program.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping

import tensorflow as tf

from tf2_engine.keras.callbacks.export_callbacks import BestExporterBase, LatestExporterBase
from tf2_engine.keras.callbacks.step_log import StepLogBase
from tf2_engine.keras.callbacks.table_summaries import TableSummaryCallbackBase
from tf2_engine.keras.callbacks.training_ends import (
    StopAtStepBase,
    StopIfHigherBase,
    StopIfLowerBase,
    StopIfNaNBase,
    StopIfNoDecreaseBase,
    StopIfNoIncreaseBase,
    StopWhenBase,
)
from tf2_engine.keras.heads.class_heads import BinaryClassHeadLayer, MultiClassHeadLayer
from tf2_engine.keras.heads.merged_head import MultiHeadLayer
from tf2_engine.keras.heads.multi_label_head import MultiLabelHeadLayer
from tf2_engine.keras.heads.number_heads import (
    LogisticRegressionHeadLayer,
    PoissonRegressionHeadLayer,
    RegressionHeadLayer,
)
from tf2_engine.keras.heads.sequence_head import SequenceHeadLayer
from tf2_engine.keras.layer_bases.baseline_layer import BaselineLayer
from tf2_engine.keras.layer_bases.column_layers import (
    ColumnEmbeddingLayer,
    DenseFeaturesLayer,
)
from tf2_engine.keras.layer_bases.embedding_layer import EmbeddingLayer
from tf2_engine.keras.layer_bases.gru_cell import GRUCellBase
from tf2_engine.keras.layer_bases.linear_layer import LinearFeaturesLayer
from tf2_engine.keras.layer_bases.preprocessing_layer import Keras3Outputs, PreprocessingLayer
from tf2_engine.keras.layer_bases.sequence_layer import SequenceFeaturesLayer
from tf2_engine.keras.layer_settings import registered
from tf2_engine.keras.rate_by_step import RateByStepBase
from tf2_engine.keras.rule_optimizer import RuleOptimizerBase
from tf2_engine.keras.table_model import TableModelBase
from tf2_engine.keras.weights import Keras2Weights, Keras3Weights


def layer_for(keras: types.ModuleType) -> type:
    """Returns the class `TPUEmbedding` for models of a Keras: `tf.keras`, `tf_keras` or `keras`."""
    # Keras 3 has a class of variables; Keras 2 uses TensorFlow's.
    variable = getattr(keras, "Variable", None)
    weights = Keras2Weights if variable is None else Keras3Weights
    bases = (weights, EmbeddingLayer, keras.layers.Layer)
    return registered(keras, _subclass("TPUEmbedding", bases, variable))


def preprocessing_for(keras: types.ModuleType) -> type:
    """Returns the class `Preprocessing` for models of a Keras; see `layer_for`."""
    outputs = (Keras3Outputs,) if hasattr(keras, "Variable") else ()
    bases = (*outputs, PreprocessingLayer, keras.layers.Layer)
    return registered(keras, _subclass("Preprocessing", bases))


def column_embedding_for(keras: types.ModuleType) -> type:
    """Returns the class `ColumnEmbedding` for models of a Keras; see `layer_for`."""
    layer_class = _subclass("ColumnEmbedding", (ColumnEmbeddingLayer, keras.layers.Layer))
    layer_class._embedding_class = staticmethod(layer_for(keras))  # type: ignore[attr-defined]
    return registered(keras, layer_class)


def cell_for(keras: types.ModuleType) -> type:
    """Returns the class `GRUCell` for models of a Keras; see `layer_for`."""
    cell_class = _subclass("GRUCell", (GRUCellBase, keras.layers.Layer))
    cell_class._dense_class = keras.layers.Dense  # type: ignore[attr-defined]
    return registered(keras, cell_class)


def _layer(name: str, base: type) -> Callable[[types.ModuleType], type]:
    return lambda keras: registered(keras, _subclass(name, (base, keras.layers.Layer)))


def _callback(base: type) -> Callable[[types.ModuleType], type]:
    name = base.__name__.removesuffix("Base")
    return lambda keras: _subclass(name, (base, keras.callbacks.Callback))


@functools.cache
def _subclass(name: str, bases: tuple[type, ...], variable: type | None = None) -> type:
    members = {
        "__module__": "tf2_engine.keras",
        "__doc__": bases[-2].__doc__,
        "_keras_variable": variable,
    }
    return type(name, bases, members)


_FACTORIES: Mapping[str, Callable[[types.ModuleType], type]] = {
    "Baseline": _layer("Baseline", BaselineLayer),
    "BinaryClassHead": _layer("BinaryClassHead", BinaryClassHeadLayer),
    "ColumnEmbedding": column_embedding_for,
    "DenseFeatures": _layer("DenseFeatures", DenseFeaturesLayer),
    "GRUCell": cell_for,
    "LinearFeatures": _layer("LinearFeatures", LinearFeaturesLayer),
    "LogisticRegressionHead": _layer("LogisticRegressionHead", LogisticRegressionHeadLayer),
    "MultiClassHead": _layer("MultiClassHead", MultiClassHeadLayer),
    "MultiHead": _layer("MultiHead", MultiHeadLayer),
    "MultiLabelHead": _layer("MultiLabelHead", MultiLabelHeadLayer),
    "PoissonRegressionHead": _layer("PoissonRegressionHead", PoissonRegressionHeadLayer),
    "Preprocessing": preprocessing_for,
    "RateByStep": lambda keras: registered(
        keras,
        _subclass("RateByStep", (RateByStepBase, keras.optimizers.schedules.LearningRateSchedule)),
    ),
    "RegressionHead": _layer("RegressionHead", RegressionHeadLayer),
    "RuleOptimizer": lambda keras: registered(
        keras, _subclass("RuleOptimizer", (RuleOptimizerBase, keras.optimizers.Optimizer))
    ),
    "SequenceFeatures": _layer("SequenceFeatures", SequenceFeaturesLayer),
    "SequenceHead": _layer("SequenceHead", SequenceHeadLayer),
    "TPUEmbedding": layer_for,
    "TableSummaryCallback": _callback(TableSummaryCallbackBase),
    "BestExporter": _callback(BestExporterBase),
    "LatestExporter": _callback(LatestExporterBase),
    "StepLog": _callback(StepLogBase),
    "StopAtStep": _callback(StopAtStepBase),
    "StopIfHigher": _callback(StopIfHigherBase),
    "StopIfLower": _callback(StopIfLowerBase),
    "StopIfNaN": _callback(StopIfNaNBase),
    "StopIfNoDecrease": _callback(StopIfNoDecreaseBase),
    "StopIfNoIncrease": _callback(StopIfNoIncreaseBase),
    "StopWhen": _callback(StopWhenBase),
    "TableModel": lambda keras: _subclass("TableModel", (TableModelBase, keras.Model)),
}


def __getattr__(name: str) -> type:
    if name not in _FACTORIES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _FACTORIES[name](tf.keras)
