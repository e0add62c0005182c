"""Reads what evaluations wrote: the scalars of event files."""

from __future__ import annotations

import os
from collections.abc import Iterator

import tensorflow.compat.v1 as tf

Scalars = dict[str, float]


def scalars_of_file(path: str) -> Iterator[tuple[int, Scalars]]:
    """Yields step and scalars of each event that has some.

    A file that a running job still writes to, or a job that died left behind, may end in the
    middle of an event: what comes before it counts.
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
        tf.logging.warning("The event file %s is damaged, its rest is not read: %s", path, error)


def scalars_by_step(directory: str) -> dict[int, Scalars]:
    """Returns the scalars of all event files in a directory, in the order of steps.

    Where several evaluations of a step have a scalar, the last one read counts.
    """
    steps: dict[int, Scalars] = {}
    for path in tf.gfile.Glob(os.path.join(directory, "events.out.tfevents.*")):
        for step, scalars in scalars_of_file(path):
            steps.setdefault(step, {}).update(scalars)
    return dict(sorted(steps.items()))
