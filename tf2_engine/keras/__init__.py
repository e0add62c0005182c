"""The engine as a Keras layer, for the Keras that `tf.keras` is, and for others beside it.

    from tf2_engine.keras import TPUEmbedding          # a tf.keras.layers.Layer
    TPUEmbedding = tf2_engine.keras.layer_for(tf_keras)  # a tf_keras.layers.Layer

Names are imported when they are first used: importing the package loads no Keras.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf2_engine import lazy

if TYPE_CHECKING:
    from tf2_engine.keras.classes import Baseline as Baseline
    from tf2_engine.keras.classes import BestExporter as BestExporter
    from tf2_engine.keras.classes import BinaryClassHead as BinaryClassHead
    from tf2_engine.keras.classes import ColumnEmbedding as ColumnEmbedding
    from tf2_engine.keras.classes import DenseFeatures as DenseFeatures
    from tf2_engine.keras.classes import GRUCell as GRUCell
    from tf2_engine.keras.classes import LatestExporter as LatestExporter
    from tf2_engine.keras.classes import LinearFeatures as LinearFeatures
    from tf2_engine.keras.classes import LogisticRegressionHead as LogisticRegressionHead
    from tf2_engine.keras.classes import MultiClassHead as MultiClassHead
    from tf2_engine.keras.classes import MultiHead as MultiHead
    from tf2_engine.keras.classes import MultiLabelHead as MultiLabelHead
    from tf2_engine.keras.classes import PoissonRegressionHead as PoissonRegressionHead
    from tf2_engine.keras.classes import Preprocessing as Preprocessing
    from tf2_engine.keras.classes import RateByStep as RateByStep
    from tf2_engine.keras.classes import RegressionHead as RegressionHead
    from tf2_engine.keras.classes import RuleOptimizer as RuleOptimizer
    from tf2_engine.keras.classes import SequenceFeatures as SequenceFeatures
    from tf2_engine.keras.classes import SequenceHead as SequenceHead
    from tf2_engine.keras.classes import StepLog as StepLog
    from tf2_engine.keras.classes import StopAtStep as StopAtStep
    from tf2_engine.keras.classes import StopIfHigher as StopIfHigher
    from tf2_engine.keras.classes import StopIfLower as StopIfLower
    from tf2_engine.keras.classes import StopIfNaN as StopIfNaN
    from tf2_engine.keras.classes import StopIfNoDecrease as StopIfNoDecrease
    from tf2_engine.keras.classes import StopIfNoIncrease as StopIfNoIncrease
    from tf2_engine.keras.classes import StopWhen as StopWhen
    from tf2_engine.keras.classes import TableModel as TableModel
    from tf2_engine.keras.classes import TableSummaryCallback as TableSummaryCallback
    from tf2_engine.keras.classes import TPUEmbedding as TPUEmbedding
    from tf2_engine.keras.classes import layer_for as layer_for
    from tf2_engine.keras.classes import preprocessing_for as preprocessing_for
    from tf2_engine.keras.columns import ByStep as ByStep
    from tf2_engine.keras.columns import Indicator as Indicator
    from tf2_engine.keras.columns import Numeric as Numeric
    from tf2_engine.keras.columns import PlainEmbedding as PlainEmbedding
    from tf2_engine.keras.columns import SequenceNumeric as SequenceNumeric
    from tf2_engine.keras.columns import bucketized_column as bucketized_column
    from tf2_engine.keras.columns import embedding_column as embedding_column
    from tf2_engine.keras.columns import id_column as id_column
    from tf2_engine.keras.columns import shared_embedding_columns as shared_embedding_columns
    from tf2_engine.keras.example_specs import parse_example_spec as parse_example_spec
    from tf2_engine.keras.example_specs import parsing_receiver as parsing_receiver
    from tf2_engine.keras.graph_receivers import ServingInputReceiver as ServingInputReceiver
    from tf2_engine.keras.graph_receivers import (
        TensorServingInputReceiver as TensorServingInputReceiver,
    )
    from tf2_engine.keras.graph_receivers import graph_receiver as graph_receiver
    from tf2_engine.keras.graph_receivers import raw_receiver as raw_receiver
    from tf2_engine.keras.keras_optimizers import (
        translate_keras_optimizer as translate_keras_optimizer,
    )
    from tf2_engine.keras.legacy_rules import KerasMomentum as KerasMomentum
    from tf2_engine.keras.legacy_rules import KerasRMSProp as KerasRMSProp
    from tf2_engine.keras.saved_model import export_saved_model as export_saved_model
    from tf2_engine.keras.saved_model import exportable as exportable
    from tf2_engine.keras.strategies import tpu_strategy as tpu_strategy
    from tf2_engine.keras.warm_starts import WarmStart as WarmStart

__getattr__, __dir__ = lazy.exports(__name__)
