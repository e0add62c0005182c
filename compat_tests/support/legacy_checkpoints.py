"""Writes and reads name-based checkpoints as TPU programs do, with TensorFlow's own Saver."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from compat_tests.conftest import rows_of_shard
from estimator_bridge.checkpoint_files import Writer

Values = Mapping[str, Any]
"""Maps names to values of variables. The rows of tables are in order of ids."""


def permuted(values: Any, hosts: int, strategy: str) -> Any:
    """Sorts the rows of a table by host, in the order in which hosts store them."""
    count = min(len(values), hosts)
    return np.concatenate(
        [values[rows_of_shard(len(values), count, part, strategy)] for part in range(count)]
    )


def by_id(stored: Any, hosts: int, strategy: str) -> Any:
    """Sorts the rows of a table by id; the inverse of `permuted`."""
    count = min(len(stored), hosts)
    rows = [rows_of_shard(len(stored), count, part, strategy) for part in range(count)]
    whole = np.empty_like(stored)
    whole[np.concatenate(rows)] = stored
    return whole


def write(
    path: str,
    tables: Values,
    others: Values,
    hosts: int = 1,
    strategy: str = "div",
    whole: Collection[str] = (),
) -> str:
    """Writes a checkpoint with a slice for each host that has rows, and returns the path.

    Tables in `whole` have only one slice.
    """
    with tf.Graph().as_default(), tf.Session() as session:
        assigned = []
        for name, values in tables.items():
            count = 1 if name in whole else min(len(values), hosts)
            variable = tf.get_variable(
                name,
                shape=values.shape,
                partitioner=tf.fixed_size_partitioner(count) if count > 1 else None,
                use_resource=True,
            )
            parts = list(variable) if count > 1 else [variable]
            stored = np.split(
                permuted(values, count, strategy),
                np.cumsum([part.shape.as_list()[0] for part in parts])[:-1],
            )
            assigned += [part.assign(some) for part, some in zip(parts, stored, strict=True)]
        for name, value in others.items():
            value = np.asarray(value)
            variable = tf.get_variable(
                name, shape=value.shape, dtype=value.dtype, use_resource=True
            )
            assigned.append(variable.assign(value))
        session.run(assigned)
        return str(tf.train.Saver(tf.global_variables()).save(session, path))


def read(path: str) -> dict[str, Any]:
    reader = tf.train.load_checkpoint(path)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def changed(path: str, new: str, change: Callable[[str, Any], Any]) -> str:
    """Copies a checkpoint, with `change(name, value)` as the values; returns the new path."""
    return write_whole(new, {name: change(name, value) for name, value in read(path).items()})


def write_whole(path: str, values: Values) -> str:
    """Writes a checkpoint without TensorFlow, which would refuse some names; returns the path."""
    writer = Writer(path)
    for name, value in values.items():
        writer.value(name, value)
    writer.finish()
    return path


def read_parts(path: str, shapes: Mapping[str, Sequence[int]], hosts: int) -> dict[str, list[Any]]:
    """Restores tables as programs on several hosts do: maps each name to the parts of all hosts."""
    with tf.Graph().as_default(), tf.Session() as session:
        tables = {
            name: list(
                tf.get_variable(
                    name,
                    shape=shape,
                    partitioner=tf.fixed_size_partitioner(min(shape[0], hosts)),
                    use_resource=True,
                )
            )
            for name, shape in shapes.items()
        }
        tf.train.Saver([part for parts in tables.values() for part in parts]).restore(session, path)
        return dict(session.run(tables))
