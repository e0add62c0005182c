"""Trains a model_fn with embedding tables in TensorFlow 2, with the features of estimators.

    trainer = training.Trainer(model_fn, "model", embedding_config_spec=spec, train_batch_size=64)
    trainer.train(input_fn, max_steps=1000)

`migrate --form tf2` writes programs that use this package; see docs/training.md. Names are imported
on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf2_engine import lazy

if TYPE_CHECKING:
    from tf2_engine.training.callbacks import (
        TableSummaryHook,
        make_early_stopping_hook,
        stop_if_higher_hook,
        stop_if_lower_hook,
        stop_if_no_decrease_hook,
        stop_if_no_increase_hook,
        train_and_evaluate,
    )
    from tf2_engine.training.checkpoints import (
        init_from_checkpoint,
        list_variables,
        load_checkpoint,
        load_variable,
    )
    from tf2_engine.training.differentiation import (
        CrossShardOptimizer,
        compute_gradients,
        gradients,
        minimize,
    )
    from tf2_engine.training.iterators import make_iterator, numpy_input_fn, pandas_input_fn
    from tf2_engine.training.replacements import (
        ExponentialMovingAverage,
        Saver,
        Scaffold,
        get_regularization_loss,
        get_regularization_losses,
        get_total_loss,
        placeholder,
        shared_embedding_columns,
        shared_embeddings,
    )
    from tf2_engine.training.strategies import TPUClusterResolver
    from tf2_engine.training.trainer import Trainer
    from tf2_engine.training.trainer_specs import (
        Embedding,
        EvalSpec,
        ModeKeys,
        ModelSpec,
        RunConfig,
        TrainSpec,
        WarmStartSettings,
    )

__getattr__, __dir__ = lazy.exports(
    __name__,
    {
        "tf2_engine.training.callbacks": [
            "TableSummaryHook",
            "make_early_stopping_hook",
            "stop_if_higher_hook",
            "stop_if_lower_hook",
            "stop_if_no_decrease_hook",
            "stop_if_no_increase_hook",
            "train_and_evaluate",
        ],
        "tf2_engine.training.checkpoints": [
            "init_from_checkpoint",
            "list_variables",
            "load_checkpoint",
            "load_variable",
        ],
        "tf2_engine.training.differentiation": [
            "CrossShardOptimizer",
            "compute_gradients",
            "gradients",
            "minimize",
        ],
        "tf2_engine.training.iterators": ["make_iterator", "numpy_input_fn", "pandas_input_fn"],
        "tf2_engine.training.replacements": [
            "ExponentialMovingAverage",
            "Saver",
            "Scaffold",
            "get_regularization_loss",
            "get_regularization_losses",
            "get_total_loss",
            "placeholder",
            "shared_embedding_columns",
            "shared_embeddings",
        ],
        "tf2_engine.training.strategies": ["TPUClusterResolver"],
        "tf2_engine.training.trainer": ["Trainer"],
        "tf2_engine.training.trainer_specs": [
            "Embedding",
            "EvalSpec",
            "ModeKeys",
            "ModelSpec",
            "RunConfig",
            "TrainSpec",
            "WarmStartSettings",
        ],
    },
)
