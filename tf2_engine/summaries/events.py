"""Reads and writes event files: scalars, and summaries of `tf.compat.v1.summary`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping

import tensorflow.compat.v1 as tf

from tf2_engine import log
from tf2_engine.types import TensorLike

Scalars = dict[str, float]


_numbers = itertools.count()


class EventFile:
    """A new event file in a directory. The file is created with the first event."""

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
    """Yields the step and the scalars of each event with scalars, up to a damaged event."""
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
        log.warning("The event file %s is damaged; its rest is not read: %s", path, error)


def scalars_by_step(directory: str) -> dict[int, Scalars]:
    """Reads the scalars of all event files in a directory, by step. The last value wins."""
    steps: dict[int, Scalars] = {}
    for path in sorted(tf.gfile.Glob(os.path.join(directory, "events.out.tfevents.*"))):
        for step, scalars in scalars_of_file(path):
            steps.setdefault(step, {}).update(scalars)
    return dict(sorted(steps.items()))
