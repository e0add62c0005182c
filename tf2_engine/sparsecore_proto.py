"""Reads and writes stock's `SparseCoreTableLayouts` with any TensorFlow version.

TensorFlow 2.15 does not have this proto, and later versions have no public name for it. Therefore
this module declares the fields of sparse_core_layout.proto that determine the place of rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from google.protobuf.message import DecodeError

from tf2_engine import described_protos, errors
from tf2_engine.sparsecore_layout import ALIGNMENT, SparseCores, TableLayout, stacks_of
from tf2_engine.types import Message

_LAYOUTS = described_protos.message_classes(
    "tf2_engine.sparse_core_layout",
    {
        "Layout": "string table_name = 1; string stacked_table_name = 2;"
        "int32 num_sparse_cores = 3; int32 num_partitions = 4;"
        "int64 total_rows_per_sparse_core_shard = 5; repeated int64 unsharded_shape = 6;"
        "repeated int64 unsharded_padded_shape = 7; int64 sparse_core_shard_row_offset = 8;"
        "int64 sparse_core_shard_rotation = 9; int64 per_sparse_core_batch_size = 10;"
        "int64 num_features = 11",
        "Layouts": "repeated Layout tables = 1",
    },
)["Layouts"]
# Maps a field to the attribute of a layout with the same value.
_ATTRIBUTES = {
    "table_name": "table",
    "stacked_table_name": "stack",
    "total_rows_per_sparse_core_shard": "stack_rows",
    "sparse_core_shard_row_offset": "row_offset",
    "sparse_core_shard_rotation": "rotation",
    "per_sparse_core_batch_size": "samples_per_sparse_core",
    "num_features": "features",
}


def serialized(layouts: Iterable[TableLayout]) -> bytes:
    message = _LAYOUTS()
    for layout in layouts:
        message.tables.add(
            num_sparse_cores=layout.sparse_cores.total,
            num_partitions=layout.sparse_cores.cores,
            unsharded_shape=[layout.rows, layout.dim],
            unsharded_padded_shape=[layout.padded_rows, layout.padded_dim],
            **{name: getattr(layout, attribute) for name, attribute in _ATTRIBUTES.items()},
        )
    return bytes(message.SerializeToString())


def parsed(data: bytes) -> dict[str, TableLayout]:
    message = _LAYOUTS()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise errors.InvalidSpec("The layouts of tables cannot be decoded.") from error
    layouts = {table.table_name: _layout(table) for table in message.tables}
    if not layouts or len(layouts) < len(message.tables):
        raise errors.InvalidSpec("The layouts of tables name no table, or one of them twice.")
    for stack in stacks_of(layouts.values()).values():
        for one, other in itertools.pairwise(stack):
            same = (one.stack_shape, one.sparse_cores) == (other.stack_shape, other.sparse_cores)
            if not same or one.row_offset + one.shard_rows > other.row_offset:
                raise errors.InvalidSpec(
                    f"The layouts of the tables {one.table!r} and {other.table!r} do not fit in "
                    f"one stack {one.stack!r}."
                )
    return layouts


def _layout(table: Message) -> TableLayout:
    cores, total = table.num_partitions, table.num_sparse_cores
    shape, padded = list(table.unsharded_shape), list(table.unsharded_padded_shape)
    if cores < 1 or total < cores or total % cores or len(shape) != 2 or len(padded) != 2:
        raise _impossible(table)
    layout = TableLayout(
        rows=shape[0],
        dim=shape[1],
        padded_rows=padded[0],
        padded_dim=padded[1],
        sparse_cores=SparseCores(cores, total // cores),
        **{attribute: getattr(table, name) for name, attribute in _ATTRIBUTES.items()},
    )
    fits = (
        1 <= layout.rows <= layout.padded_rows
        and 1 <= layout.dim <= layout.padded_dim
        and layout.padded_rows % (ALIGNMENT * total) == 0
        and 0 <= layout.row_offset <= layout.stack_rows - layout.shard_rows
        and 0 <= layout.rotation < total
    )
    if not fits or not layout.stack:
        raise _impossible(table)
    return layout


def _impossible(table: Message) -> errors.InvalidSpec:
    return errors.InvalidSpec(f"The layout of table {table.table_name!r} is not possible.")
