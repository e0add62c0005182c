"""`train_and_evaluate`: trains, and evaluates and exports each checkpoint."""

from __future__ import annotations

import os
from collections.abc import Sequence

import tensorflow as tf

from tf2_engine.training.trainer import Trainer
from tf2_engine.training.trainer_specs import EvalSpec, TrainSpec
from tf2_engine.types import Object

Results = dict[str, Object]


def train_and_evaluate(
    estimator: Trainer, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[Results, list[Object]]:
    """Trains, and evaluates and exports each checkpoint when it is written.

    Returns:
        The metrics of the last checkpoint, and the result of each exporter for this checkpoint.
    """
    evaluator = _Evaluator(estimator, eval_spec)
    estimator.train(
        train_spec.input_fn,
        train_spec.hooks,
        max_steps=train_spec.max_steps,
        saving_listeners=[evaluator, *(train_spec.saving_listeners or ())],
    )
    return evaluator.finish()


class _Evaluator(tf.compat.v1.train.CheckpointSaverListener):
    def __init__(self, trainer: Trainer, spec: EvalSpec) -> None:
        self._trainer, self._spec = trainer, spec
        self._results: Results | None = None

    def after_save(self, session: None, step: int) -> None:
        spec = self._spec
        self._results = self._trainer.evaluate(
            spec.input_fn, spec.steps, spec.hooks, name=spec.name
        )
        self._export(is_last=False)

    def finish(self) -> tuple[Results, list[Object]]:
        if self._results is None:
            self.after_save(None, int(self._trainer.step.numpy()))
        assert self._results is not None
        return self._results, self._export(is_last=True)

    def _export(self, *, is_last: bool) -> list[Object]:
        exporters = self._spec.exporters or ()
        if not isinstance(exporters, Sequence):
            exporters = (exporters,)
        base = os.path.join(tf.compat.as_str_any(self._trainer.model_dir), "export")
        checkpoint = self._trainer.latest_checkpoint()
        return [
            each.export(
                self._trainer, os.path.join(base, each.name), checkpoint, self._results, is_last
            )
            for each in exporters
        ]
