"""The engine as a Keras layer, for `tf.keras` and for other versions of Keras.

    from tf2_engine.keras import TPUEmbedding          # a tf.keras.layers.Layer
    TPUEmbedding = tf2_engine.keras.layer_for(tf_keras)  # a tf_keras.layers.Layer

Names are imported on first use, so importing the package does not load Keras.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf2_engine import lazy

if TYPE_CHECKING:
    from tf2_engine.keras.classes import (
        Baseline,
        BestExporter,
        BinaryClassHead,
        ColumnEmbedding,
        DenseFeatures,
        GRUCell,
        LatestExporter,
        LinearFeatures,
        LogisticRegressionHead,
        MultiClassHead,
        MultiHead,
        MultiLabelHead,
        PoissonRegressionHead,
        Preprocessing,
        RateByStep,
        RegressionHead,
        RuleOptimizer,
        SequenceFeatures,
        SequenceHead,
        StepLog,
        StopAtStep,
        StopIfHigher,
        StopIfLower,
        StopIfNaN,
        StopIfNoDecrease,
        StopIfNoIncrease,
        StopWhen,
        TableModel,
        TableSummaryCallback,
        TPUEmbedding,
        TrainerModel,
        layer_for,
        preprocessing_for,
    )
    from tf2_engine.keras.columns import (
        ByStep,
        Indicator,
        Numeric,
        PlainEmbedding,
        SequenceNumeric,
        bucketized_column,
        embedding_column,
        id_column,
        parse_example_spec,
        parsing_receiver,
        shared_embedding_columns,
    )
    from tf2_engine.keras.keras_optimizers import translate_keras_optimizer
    from tf2_engine.keras.legacy_rules import KerasMomentum, KerasRMSProp
    from tf2_engine.keras.model_checkpoints import WarmStart
    from tf2_engine.keras.saved_model import (
        ServingInputReceiver,
        TensorServingInputReceiver,
        export_saved_model,
        exportable,
        graph_receiver,
        raw_receiver,
    )
    from tf2_engine.training.strategies import tpu_strategy

__getattr__, __dir__ = lazy.exports(
    __name__,
    {
        "tf2_engine.keras.classes": [
            "Baseline",
            "BestExporter",
            "BinaryClassHead",
            "ColumnEmbedding",
            "DenseFeatures",
            "GRUCell",
            "LatestExporter",
            "LinearFeatures",
            "LogisticRegressionHead",
            "MultiClassHead",
            "MultiHead",
            "MultiLabelHead",
            "PoissonRegressionHead",
            "Preprocessing",
            "RateByStep",
            "RegressionHead",
            "RuleOptimizer",
            "SequenceFeatures",
            "SequenceHead",
            "StepLog",
            "StopAtStep",
            "StopIfHigher",
            "StopIfLower",
            "StopIfNaN",
            "StopIfNoDecrease",
            "StopIfNoIncrease",
            "StopWhen",
            "TableModel",
            "TableSummaryCallback",
            "TPUEmbedding",
            "TrainerModel",
            "layer_for",
            "preprocessing_for",
        ],
        "tf2_engine.keras.columns": [
            "ByStep",
            "Indicator",
            "Numeric",
            "PlainEmbedding",
            "SequenceNumeric",
            "bucketized_column",
            "embedding_column",
            "id_column",
            "parse_example_spec",
            "parsing_receiver",
            "shared_embedding_columns",
        ],
        "tf2_engine.keras.keras_optimizers": ["translate_keras_optimizer"],
        "tf2_engine.keras.legacy_rules": ["KerasMomentum", "KerasRMSProp"],
        "tf2_engine.keras.model_checkpoints": ["WarmStart"],
        "tf2_engine.keras.saved_model": [
            "ServingInputReceiver",
            "TensorServingInputReceiver",
            "export_saved_model",
            "exportable",
            "graph_receiver",
            "raw_receiver",
        ],
        "tf2_engine.training.strategies": ["tpu_strategy"],
    },
)
