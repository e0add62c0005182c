"""Packs data of several tables into few tensors, to be sent between a core and a server.

Each tensor that is sent costs about 650 bytes and a call. Therefore a step sends four tensors: the
ids of the wanted rows, the rows, and two vectors with gradients. A table's gradients have one of
three forms:

* occurrences: one gradient for each id. (`batch` defines occurrence, cell and gain.)
* cells: the gradient of each cell, and the cell and gain of each id. The server multiplies the
  cell's gradient by the gain. This form is smaller if several of a server's ids share a cell.
* summed: the core's sum for each distinct row, in the same layout as occurrences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

import tensorflow as tf

from tf2_engine.backends.host.update import RowGradients
from tf2_engine.types import Tensor

Wire: TypeAlias = Literal["smallest", "occurrences", "cells", "summed"]
"""The form of gradients. "smallest" picks the smaller of occurrences and cells."""

WIRES: tuple[Wire, ...] = get_args(Wire)

Message: TypeAlias = tuple[Tensor, Tensor]
"""The gradients that a core sends to a server: integers, [num] int64, and floats, [num] float32."""

Messages: TypeAlias = dict[int, Message]
"""The gradients that a core sends: maps the number of each server to its message."""


class TableGradients(NamedTuple):
    """The gradients of one table: ids [num_ids] int64, and rows [num_rows, dim] float32.

    If `num_cells` is 0, there is one row for each id. Otherwise there is one row for each cell, and
    each id has a cell and a gain.
    """

    ids: Tensor
    rows: Tensor
    cells: Tensor | None = None
    gains: Tensor | None = None
    num_cells: Tensor | int = 0


def pack_ids(ids: Sequence[Tensor]) -> Tensor:
    """Concatenates the ids of tables. With several tables, the numbers of ids come first."""
    if len(ids) == 1:
        return ids[0]
    sizes = tf.stack([tf.size(each, out_type=tf.int64) for each in ids])
    return tf.concat([sizes, *ids], 0)


def unpack_ids(message: Tensor, count: int) -> list[Tensor]:
    if count == 1:
        return [message]
    sizes, ids = message[:count], message[count:]
    return list(tf.split(ids, sizes, num=count))


def pack_rows(rows: Sequence[Tensor]) -> Tensor:
    return tf.concat([tf.reshape(each, [-1]) for each in rows], 0)


def unpack_rows(message: Tensor, ids: Sequence[Tensor], dims: Sequence[int]) -> list[Tensor]:
    sizes = [tf.size(each, out_type=tf.int64) * dim for each, dim in zip(ids, dims, strict=True)]
    flat = [message] if len(ids) == 1 else tf.split(message, tf.stack(sizes), num=len(ids))
    return [tf.reshape(each, [-1, dim]) for each, dim in zip(flat, dims, strict=True)]


def pack_gradients(tables: Sequence[TableGradients]) -> Message:
    """Joins the gradients of several tables into one message.

    The integers begin with each table's number of ids and number of cells. The ids and cells of
    each table follow. The floats are the gains and rows of each table.
    """
    sizes: list[Tensor | int] = []
    numbers: list[Tensor] = []
    floats: list[Tensor] = []
    for of_table in tables:
        sizes.append(tf.size(of_table.ids, out_type=tf.int64))
        sizes.append(of_table.num_cells)
        numbers += [each for each in (of_table.ids, of_table.cells) if each is not None]
        floats += [each for each in (of_table.gains, of_table.rows) if each is not None]
    return tf.concat(
        [tf.stack([tf.cast(size, tf.int64) for size in sizes]), *numbers], 0
    ), pack_rows(floats)


def unpack_gradients(
    message: Message, dims: Sequence[int], *, may_have_cells: bool
) -> list[RowGradients]:
    """Splits a message into the gradients of each table.

    `may_have_cells=False` is faster, and correct only if no table has the form "cells".
    """
    numbers, floats = message
    header = tf.reshape(numbers[: 2 * len(dims)], [-1, 2])
    counts, num_cells = tf.unstack(header, axis=1)
    has_cells = tf.cast(num_cells > 0, tf.int64)
    gains = counts * has_cells
    rows = (num_cells + counts * (1 - has_cells)) * tf.constant(list(dims), tf.int64)
    parts = tf.split(numbers[2 * len(dims) :], _flat(counts, gains), num=2 * len(dims))
    of_floats = tf.split(floats, _flat(gains, rows), num=2 * len(dims))
    of_tables = []
    for table, dim in enumerate(dims):
        ids, of_rows = parts[2 * table], tf.reshape(of_floats[2 * table + 1], [-1, dim])
        if may_have_cells:
            cells, gain = parts[2 * table + 1], of_floats[2 * table]
            # Without cells, each id has its own row and a gain of one.
            cell = tf.concat([cells, tf.range(gains[table], counts[table])], 0)
            ones = tf.ones([counts[table] - gains[table]], tf.float32)
            of_rows = tf.concat([gain, ones], 0)[:, None] * tf.gather(of_rows, cell)
        of_tables.append(RowGradients(ids, of_rows))
    return of_tables


def _flat(one: Tensor, other: Tensor) -> Tensor:
    return tf.reshape(tf.stack([one, other], 1), [-1])
