"""Reads the scalars that evaluations wrote to event files."""

from __future__ import annotations

import os
from collections.abc import Iterator

import tensorflow.compat.v1 as tf

Scalars = dict[str, float]


def scalars_of_file(path: str) -> Iterator[tuple[int, Scalars]]:
    """Yields the step and the scalars of each event that has scalars.

    The file of a running job, or of one that was killed, may end in the middle of an event; the
    events before that are read.
    """
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
        tf.logging.warning("The event file %s is damaged; its rest is not read: %s", path, error)


def scalars_by_step(directory: str) -> dict[int, Scalars]:
    """Returns the scalars of all event files in a directory, in the order of steps.

    If several evaluations of a step have a scalar, the one that is read last counts.
    """
    steps: dict[int, Scalars] = {}
    for path in tf.gfile.Glob(os.path.join(directory, "events.out.tfevents.*")):
        for step, scalars in scalars_of_file(path):
            steps.setdefault(step, {}).update(scalars)
    return dict(sorted(steps.items()))
