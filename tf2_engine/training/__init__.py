"""Trains a model_fn with embedding tables in TensorFlow 2, with the features of estimators.

    from tf2_engine import training

    trainer = training.Trainer(model_fn, "model", embedding_config_spec=spec, train_batch_size=64)
    trainer.train(input_fn, max_steps=1000)

`migrate --form tf2` writes programs that use this package; see docs/training.md. Names are imported
on first use, so importing the package does not load TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf2_engine import lazy

if TYPE_CHECKING:
    from tf2_engine.training.averages import ExponentialMovingAverage
    from tf2_engine.training.differentiation import (
        CrossShardOptimizer,
        compute_gradients,
        gradients,
        minimize,
    )
    from tf2_engine.training.early_stopping import (
        make_early_stopping_hook,
        stop_if_higher_hook,
        stop_if_lower_hook,
        stop_if_no_decrease_hook,
        stop_if_no_increase_hook,
    )
    from tf2_engine.training.evaluated_training import train_and_evaluate
    from tf2_engine.training.in_graphs import (
        placeholder,
        shared_embedding_columns,
        shared_embeddings,
    )
    from tf2_engine.training.initial_values import (
        init_from_checkpoint,
        list_variables,
        load_checkpoint,
        load_variable,
    )
    from tf2_engine.training.iterators import make_iterator, numpy_input_fn, pandas_input_fn
    from tf2_engine.training.losses import (
        get_regularization_loss,
        get_regularization_losses,
        get_total_loss,
    )
    from tf2_engine.training.resolver import TPUClusterResolver
    from tf2_engine.training.saver import Saver, Scaffold
    from tf2_engine.training.table_summaries import TableSummaryHook
    from tf2_engine.training.trainer import Trainer
    from tf2_engine.training.trainer_specs import (
        EvalSpec,
        ModeKeys,
        ModelSpec,
        RunConfig,
        TrainSpec,
        WarmStartSettings,
    )
    from tf2_engine.training.trainer_tables import Embedding

__getattr__, __dir__ = lazy.exports(
    __name__,
    {
        "tf2_engine.training.averages": ["ExponentialMovingAverage"],
        "tf2_engine.training.differentiation": [
            "CrossShardOptimizer",
            "compute_gradients",
            "gradients",
            "minimize",
        ],
        "tf2_engine.training.early_stopping": [
            "make_early_stopping_hook",
            "stop_if_higher_hook",
            "stop_if_lower_hook",
            "stop_if_no_decrease_hook",
            "stop_if_no_increase_hook",
        ],
        "tf2_engine.training.evaluated_training": ["train_and_evaluate"],
        "tf2_engine.training.in_graphs": [
            "placeholder",
            "shared_embedding_columns",
            "shared_embeddings",
        ],
        "tf2_engine.training.initial_values": [
            "init_from_checkpoint",
            "list_variables",
            "load_checkpoint",
            "load_variable",
        ],
        "tf2_engine.training.iterators": ["make_iterator", "numpy_input_fn", "pandas_input_fn"],
        "tf2_engine.training.losses": [
            "get_regularization_loss",
            "get_regularization_losses",
            "get_total_loss",
        ],
        "tf2_engine.training.resolver": ["TPUClusterResolver"],
        "tf2_engine.training.saver": ["Saver", "Scaffold"],
        "tf2_engine.training.table_summaries": ["TableSummaryHook"],
        "tf2_engine.training.trainer": ["Trainer"],
        "tf2_engine.training.trainer_specs": [
            "EvalSpec",
            "ModeKeys",
            "ModelSpec",
            "RunConfig",
            "TrainSpec",
            "WarmStartSettings",
        ],
        "tf2_engine.training.trainer_tables": ["Embedding"],
    },
)
