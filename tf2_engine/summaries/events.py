"""Reads and writes event files: scalars, and summaries of `tf.compat.v1.summary`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping

import tensorflow.compat.v1 as tf

from tf2_engine import errors, log
from tf2_engine.types import TensorLike

Scalars = dict[str, float]


_numbers = itertools.count()


class EventFile:
    """Writes a new event file in a directory. The file is created with the first event."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._writer: tf.summary.FileWriter | None = None

    def scalars(self, step: int, values: Mapping[str, TensorLike]) -> None:
        summary = tf.Summary()
        for tag, value in values.items():
            if isinstance(value, bytes | str) or getattr(value, "shape", ()) != ():
                continue
            summary.value.add(tag=tag, simple_value=float(value))
        self._open().add_summary(summary, step)

    def merged(self, step: int, summaries: bytes) -> None:
        self._open().add_summary(summaries, step)

    def flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()

    def _open(self) -> tf.summary.FileWriter:
        if self._writer is None:
            # TensorFlow names files after the current second, and would overwrite an earlier file.
            suffix = f".{os.getpid()}.{next(_numbers):06d}"
            with tf.Graph().as_default():  # The class requires a graph.
                self._writer = tf.summary.FileWriter(self._directory, filename_suffix=suffix)
        return self._writer


def scalars_of_file(path: str) -> Iterator[tuple[int, Scalars]]:
    """Yields the step and the scalars of each event that has scalars; stops at a damaged event."""
    try:
        for event in tf.train.summary_iterator(path):
            scalars = {
                value.tag: value.simple_value
                for value in event.summary.value
                if value.HasField("simple_value")
            }
            if scalars:
                yield event.step, scalars
    except tf.errors.DataLossError as error:
        log.warning("The event file %s is damaged; the rest is not read: %s", path, error)


def scalars_by_step(directory: str) -> dict[int, Scalars]:
    """Maps steps to scalars, from all event files in a directory.

    If several events have the same scalar for a step, the last value counts.
    """
    steps: dict[int, Scalars] = {}
    for path in sorted(tf.gfile.Glob(os.path.join(directory, "events.out.tfevents.*"))):
        for step, scalars in scalars_of_file(path):
            steps.setdefault(step, {}).update(scalars)
    return dict(sorted(steps.items()))


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
