"""A callback that writes statistics of tables."""

from __future__ import annotations

from tf2_engine import errors
from tf2_engine.embedding import TPUEmbedding
from tf2_engine.keras.layer_bases.embedding_layer import EmbeddingLayer
from tf2_engine.summaries.writing import EVERY, TableSummaries
from tf2_engine.types import Object


class TableSummaryCallbackBase:
    """Writes statistics of the tables of "tpu" arithmetic to event files; see docs/tensorboard.md.

        model.fit(dataset, callbacks=[TableSummaryCallback("logs/train")])

    Args:
        output_dir: the folder of the event files.
        every_n_steps: writes the first step, and then at this interval.
        projector_rows: how many rows of each table the embedding projector gets when training ends.
            0 writes no files for it.
        labels: names of the rows for the projector, by table.

    Raises:
        InvalidInput: `every_n_steps` is less than 1, or the model has no such tables.
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
                'TableSummaryCallback: the model has no TPUEmbedding layer of "tpu" arithmetic. '
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
