"""Writes summaries of tables during training, for callbacks and hooks."""

from __future__ import annotations

from collections.abc import Sequence

from tf2_engine import errors
from tf2_engine.embedding import TPUEmbedding
from tf2_engine.summaries.events import EventFile
from tf2_engine.summaries.projector import Labels, first_rows, write_projector
from tf2_engine.summaries.statistics import StatisticsRecorder
from tf2_engine.types import TensorLike

EVERY = 1000
"""The default interval in steps; docs/tensorboard.md gives the measured cost of recording."""


def checked_interval(every_n_steps: int) -> int:
    if every_n_steps < 1:
        raise errors.InvalidInput(f"`every_n_steps` must be at least 1, got {every_n_steps!r}.")
    return every_n_steps


class TableSummaries:
    """Writes statistics of tables, and data for the embedding projector at the end.

    The arguments are those of `TableSummaryHook`.
    """

    def __init__(
        self,
        output_dir: str | None = None,
        every_n_steps: int = EVERY,
        projector_rows: int = 0,
        labels: Labels | None = None,
    ) -> None:
        self.output_dir, self.every_n_steps = output_dir, checked_interval(every_n_steps)
        self._projector_rows, self._labels = projector_rows, labels
        self._engines: Sequence[TPUEmbedding] = ()
        self._recorders: list[StatisticsRecorder] = []
        self._events: EventFile | None = None
        self._steps = self._written = 0

    def watch(self, engines: Sequence[TPUEmbedding], default_dir: str | None = None) -> None:
        """Starts to observe engines. Functions that run steps must be traced after this call."""
        directory = self.output_dir or default_dir
        if directory is None:
            raise errors.InvalidInput("`output_dir` is missing. Give the directory for summaries.")
        self._engines, self.directory = engines, directory
        self._recorders = [StatisticsRecorder(each, self.every_n_steps) for each in engines]
        self._events = EventFile(directory)
        self._steps = self._written = 0

    def count(self, step: int, steps: int = 1) -> None:
        """Counts `steps` steps up to global step `step`, and writes statistics if they are due."""
        self._steps += steps
        if self._events is None or self._steps <= self._written:
            return
        due = 1 + (self._steps - 1) // self.every_n_steps * self.every_n_steps
        self._written = due + self.every_n_steps - 1
        for recorder in self._recorders:
            self._events.scalars(step - (self._steps - due), recorder.read())

    def close(self) -> None:
        for recorder in self._recorders:
            recorder.stop()
        if self._events is not None:
            self._events.flush()
        rows: dict[str, TensorLike] = {}
        for engine in self._engines:
            rows |= first_rows(engine.tables, self._projector_rows)
        if rows:
            write_projector(self.directory, rows, self._labels, self._projector_rows)
        self._recorders, self._events = [], None
