"""Callbacks that report during training: a log of the loss, and statistics of tables."""

from __future__ import annotations

from collections.abc import Mapping

from tf2_engine import errors, log
from tf2_engine.embedding import TPUEmbedding
from tf2_engine.keras.layer_bases.embedding_layer import EmbeddingLayer
from tf2_engine.pacing import Pace
from tf2_engine.summaries.writing import EVERY, TableSummaries
from tf2_engine.types import Object


class TableSummaryCallbackBase:
    """Writes statistics of tables with "tpu" arithmetic to event files; see docs/tensorboard.md.

        model.fit(dataset, callbacks=[TableSummaryCallback("logs/train")])

    Args:
        output_dir: the folder of the event files.
        every_n_steps: the interval in steps. The statistics of the first step are always written.
        projector_rows: the number of rows of each table for the embedding projector, written when
            training ends. 0 writes no rows.
        labels: maps a table's name to the names of its rows in the projector.

    Raises:
        InvalidInput: `every_n_steps` is less than 1, or the model has no tables with "tpu"
            arithmetic.
        OutOfOrder: the model runs under a TPUStrategy.
    """

    model: Object

    def __init__(
        self,
        output_dir: str,
        every_n_steps: int = EVERY,
        projector_rows: int = 0,
        labels: Object = None,
    ) -> None:
        super().__init__()
        self._summaries = TableSummaries(output_dir, every_n_steps, projector_rows, labels)
        self._step = self._of_epoch = 0

    def set_model(self, model: Object) -> None:
        super().set_model(model)  # type: ignore[misc]
        engines = [
            layer.embedding
            for layer in model._flatten_layers()
            if isinstance(layer, EmbeddingLayer) and isinstance(layer.embedding, TPUEmbedding)
        ]
        if not engines:
            raise errors.InvalidInput(
                'TableSummaryCallback: the model has no TPUEmbedding layer with "tpu" arithmetic. '
                'Pass `arithmetic`="tpu" to the layer, or leave the callback out.'
            )
        self._engines = engines

    def on_train_begin(self, logs: Object = None) -> None:
        self._summaries.watch(self._engines)
        self.model.make_train_function(force=True)
        self._step = 0

    def on_epoch_begin(self, epoch: int, logs: Object = None) -> None:
        self._of_epoch = 0

    def on_train_batch_end(self, batch: int, logs: Object = None) -> None:
        steps, self._of_epoch = batch + 1 - self._of_epoch, batch + 1
        self._step += steps
        self._summaries.count(self._step, steps)

    def on_train_end(self, logs: Object = None) -> None:
        self._summaries.close()


class StepLogBase:
    """Logs the loss and the global step of a `TableModel` at the first step, then at intervals.

    Args:
        every_steps, every_secs: the interval. One must be None; with `at_end` both may be None.
        at_end: also logs the last step.

    Raises:
        InvalidInput: both intervals are given; or both are None without `at_end`.
    """

    model: Object

    def __init__(
        self,
        every_steps: int | None = None,
        every_secs: float | None = None,
        at_end: bool = False,
    ) -> None:
        super().__init__()
        only_at_end = at_end and every_secs is None and every_steps is None
        self._pace = None if only_at_end else Pace(every_secs, every_steps)
        self._at_end = at_end
        self._steps, self._loss = 0, float("nan")

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Object] | None = None) -> None:
        self._loss = float((logs or {})["loss"])
        if self._pace is not None and self._pace.is_due(self._steps):
            self._log()
        self._steps += 1

    def on_train_end(self, logs: Object = None) -> None:
        if self._at_end and self._steps:
            self._log()

    def _log(self) -> None:
        log.info("loss = %s, step = %d", self._loss, self.model.global_step)
