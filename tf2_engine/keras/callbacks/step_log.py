"""A callback that logs the loss and the step while a model trains."""

from __future__ import annotations

from collections.abc import Mapping

from tf2_engine import log
from tf2_engine.pacing import Pace
from tf2_engine.types import Object


class StepLogBase:
    """Logs the loss and the global step of a `TableModel`: at the first step, and at intervals.

    Args:
        every_steps, every_secs: the interval. One of them is None, or both with `at_end`.
        at_end: logs the last step too.

    Raises:
        InvalidInput: both intervals are given, or neither is, without `at_end`.
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
