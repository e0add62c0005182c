"""A hook of `Trainer` that writes statistics of tables."""

from __future__ import annotations

from tf2_engine.embedding import TPUEmbedding
from tf2_engine.summaries.writing import TableSummaries


class TableSummaryHook(TableSummaries):
    """Writes statistics of tables to the model's event files, for TensorBoard.

        trainer.train(input_fn, hooks=[training.TableSummaryHook()], max_steps=10_000)

    docs/tensorboard.md lists the statistics. With this hook, `train` traces the step again.

    Args:
        output_dir: the folder of the event files; by default the trainer's `model_dir`.
        every_n_steps: the interval in steps. The statistics of the first step are always written.
        projector_rows: the number of rows of each table for the embedding projector, written when
            training ends. 0 writes no rows.
        labels: maps a table's name to the names of its rows in the projector.

    Raises:
        InvalidInput: `every_n_steps` is less than 1.
        OutOfOrder: the trainer runs under a TPUStrategy.
    """

    def observe(self, engine: TPUEmbedding, model_dir: str) -> None:
        """Starts to observe the trainer's tables. This is called before the step is traced."""
        self.watch([engine], model_dir)

    def on_train_batch_end(self, step: int) -> None:
        self.count(step)

    def on_train_end(self) -> None:
        self.close()
