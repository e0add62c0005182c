"""Trains a model_fn with embedding tables in TensorFlow 2, with the features of estimators.

    from tf2_engine import training

    trainer = training.Trainer(model_fn, "model", embedding_config_spec=spec, train_batch_size=64)
    trainer.train(input_fn, max_steps=1000)

`migrate --form tf2` writes programs that use it; docs/training.md describes it. Names are imported
when they are first used: importing the package loads no TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf2_engine import lazy

if TYPE_CHECKING:
    from tf2_engine.training.averages import ExponentialMovingAverage as ExponentialMovingAverage
    from tf2_engine.training.differentiation import CrossShardOptimizer as CrossShardOptimizer
    from tf2_engine.training.differentiation import compute_gradients as compute_gradients
    from tf2_engine.training.differentiation import gradients as gradients
    from tf2_engine.training.differentiation import minimize as minimize
    from tf2_engine.training.early_stopping import (
        make_early_stopping_hook as make_early_stopping_hook,
    )
    from tf2_engine.training.early_stopping import stop_if_higher_hook as stop_if_higher_hook
    from tf2_engine.training.early_stopping import stop_if_lower_hook as stop_if_lower_hook
    from tf2_engine.training.early_stopping import (
        stop_if_no_decrease_hook as stop_if_no_decrease_hook,
    )
    from tf2_engine.training.early_stopping import (
        stop_if_no_increase_hook as stop_if_no_increase_hook,
    )
    from tf2_engine.training.evaluated_training import train_and_evaluate as train_and_evaluate
    from tf2_engine.training.losses import get_regularization_loss as get_regularization_loss
    from tf2_engine.training.losses import get_regularization_losses as get_regularization_losses
    from tf2_engine.training.losses import get_total_loss as get_total_loss
    from tf2_engine.training.resolver import TPUClusterResolver as TPUClusterResolver
    from tf2_engine.training.saver import Saver as Saver
    from tf2_engine.training.saver import Scaffold as Scaffold
    from tf2_engine.training.table_summaries import TableSummaryHook as TableSummaryHook
    from tf2_engine.training.trainer import Trainer as Trainer
    from tf2_engine.training.trainer_specs import EvalSpec as EvalSpec
    from tf2_engine.training.trainer_specs import ModeKeys as ModeKeys
    from tf2_engine.training.trainer_specs import ModelSpec as ModelSpec
    from tf2_engine.training.trainer_specs import RunConfig as RunConfig
    from tf2_engine.training.trainer_specs import TrainSpec as TrainSpec
    from tf2_engine.training.trainer_specs import WarmStartSettings as WarmStartSettings
    from tf2_engine.training.trainer_tables import Embedding as Embedding

__getattr__, __dir__ = lazy.exports(__name__)
