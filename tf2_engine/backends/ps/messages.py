"""Messages between a core and a server: one tensor holds what is meant for several tables.

A tensor that crosses from task to task has some 650 bytes around it, and wants a call of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf2_engine.types import Tensor


def pack_ids(ids: Sequence[Tensor]) -> Tensor:
    """Returns the ids of several tables, each [num_ids] int64, as one vector: sizes come first."""
    if len(ids) == 1:
        return ids[0]
    sizes = tf.stack([tf.size(each, out_type=tf.int64) for each in ids])
    return tf.concat([sizes, *ids], 0)


def unpack_ids(message: Tensor, count: int) -> list[Tensor]:
    """Returns the ids of `count` tables that were packed."""
    if count == 1:
        return [message]
    sizes, ids = message[:count], message[count:]
    return list(tf.split(ids, sizes, num=count))


def pack_rows(rows: Sequence[Tensor]) -> Tensor:
    """Returns rows of several tables, each [num_ids, dim] float32, as one vector."""
    return tf.concat([tf.reshape(each, [-1]) for each in rows], 0)


def unpack_rows(message: Tensor, ids: Sequence[Tensor], dims: Sequence[int]) -> list[Tensor]:
    """Returns rows that were packed, one for each id of each table, [num_ids, dim] float32."""
    sizes = [tf.size(each, out_type=tf.int64) * dim for each, dim in zip(ids, dims, strict=True)]
    flat = [message] if len(ids) == 1 else tf.split(message, tf.stack(sizes), num=len(ids))
    return [tf.reshape(each, [-1, dim]) for each, dim in zip(flat, dims, strict=True)]
