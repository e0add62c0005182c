"""Reads the values of a metric in all evaluations so far, from event files."""

from __future__ import annotations

from collections.abc import Callable

from tf2_engine import errors, log
from tf2_engine.summaries.events import scalars_by_step

Comparison = Callable[[float, float], bool]


class Evaluations:
    """The values of one metric in all evaluations so far, starting with step `min_steps`."""

    def __init__(self, directory: str, metric: str, min_steps: int) -> None:
        self._directory, self._metric, self._min_steps = directory, metric, min_steps

    def crossed(self, threshold: float, beyond: Comparison) -> bool:
        for step, value in self._values():
            if beyond(value, threshold):
                log.info(
                    "Early stopping: %s is %s at step %d, past the threshold of %s.",
                    *(self._metric, value, step, threshold),
                )
                return True
        return False

    def stuck(self, patience: int, better: Comparison) -> bool:
        """Whether there was ever a span of `patience` steps in which the metric did not improve."""
        best: tuple[int, float] | None = None
        for step, value in self._values():
            if best is None or better(value, best[1]):
                best = step, value
            if step - best[0] >= patience:
                log.info(
                    "Early stopping: %s is %s at step %d, no better than %s at step %d.",
                    *(self._metric, value, step, best[1], best[0]),
                )
                return True
        return False

    def _values(self) -> list[tuple[int, float]]:
        evaluations = scalars_by_step(self._directory).items()
        later = [(step, scalars) for step, scalars in evaluations if step >= self._min_steps]
        for step, scalars in later:
            if self._metric not in scalars:
                raise errors.MissingMetric(
                    f"Early stopping: the evaluation of step {step} in {self._directory!r} has no "
                    f"metric {self._metric!r}, only {', '.join(sorted(scalars))}."
                )
        return [(step, scalars[self._metric]) for step, scalars in later]
