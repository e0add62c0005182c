"""Cuts a job's large variables into slices of rows; a checkpoint stores each slice separately.

To restore a row, TensorFlow reads the whole slice that contains it. So a parameter server could not
restore a slice that is larger than its memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from estimator_bridge.runtime.step.table_variables import TableVariables
from tf2_engine import sharding, tf_compat
from tf2_engine.types import Object, Variable

SLICE_BYTES = 40 << 20
"""The largest size of a slice.

glibc keeps freed blocks of up to 32 MiB (M_MMAP_THRESHOLD_MAX) in its heaps. Slices are larger, so
their memory returns to the system. Up to three slices, of a session that ends and of the next one,
are in memory together: about a hundred megabytes.
"""

_LARGE_PIECE = 2  # slices

_ALIGNED_ROWS = 16
"""A slice is stored without a copy if its number of rows is a multiple of this, whatever the
size of a row.
"""

Ranges = Sequence[tuple[int, int]]
"""Ranges of consecutive rows in a stored tensor: (first row, number of rows)."""


def in_slices(
    objects: Sequence[Object], tables: TableVariables, most_bytes: int | None
) -> list[Object]:
    """Prepares variables and other objects for a Saver: large variables are cut into slices.

    Args:
        objects: the objects to save, with all parts of each variable.
        tables: the tables of the job. Parts of a table in "mod" order stay whole, because the order
            of their rows follows from the number of the part.
        most_bytes: the largest size of a slice. None makes each range of rows one slice.
    """
    parts: dict[str, list[Variable]] = {}
    saved: list[Object] = []
    for each in objects:
        if tf_compat.row_ranges(each) is None:
            saved.append(each)
        else:
            parts.setdefault(tf_compat.checkpoint_key(each), []).append(each)
    for key, variables in parts.items():
        rows = None if _is_by_mod(key, variables, tables) else _slice_rows(variables, most_bytes)
        if rows is None:
            saved += variables
        else:
            saved += [
                tf_compat.VariableInSlices(each, tuple(cut(tf_compat.row_ranges(each) or (), rows)))
                for each in variables
            ]
    return saved


def is_large_piece(piece_bytes: int, row_bytes: int) -> bool:
    """Whether a stored piece is too large to be read again for each slice cut from it."""
    return piece_bytes > max(_LARGE_PIECE * SLICE_BYTES, row_bytes)


def cut(ranges: Ranges, rows: int) -> Iterator[tuple[int, int]]:
    for start, count in ranges:
        for first in range(0, count, rows):
            yield start + first, min(rows, count - first)


def rows_at_once(ranges: Ranges, row_bytes: int, most_bytes: int) -> int | None:
    """Computes the number of rows per slice; None if the ranges need not be cut.

    The slices are never such that each host has one slice of equal size, because a reader could not
    tell whether these parts are in "div" or "mod" order.
    """
    rows = max(1, most_bytes // max(1, row_bytes))
    if all(count <= rows for _, count in ranges):
        return None
    if rows > _ALIGNED_ROWS:
        rows -= rows % _ALIGNED_ROWS
    total = sum(count for _, count in ranges)
    while rows > 1:
        counts = tuple(count for _, count in cut(ranges, rows))
        if counts != sharding.shard_rows(total, len(counts)):
            break
        rows -= _ALIGNED_ROWS if rows > _ALIGNED_ROWS else 1
    return rows


def _is_by_mod(key: str, parts: Sequence[Variable], tables: TableVariables) -> bool:
    shape = tf_compat.checkpoint_shape(parts[0])
    by_mod = tables.strategy == "mod" and len(parts) > 1
    return by_mod and shape is not None and tables.is_table_or_slot(key, shape)


def _slice_rows(parts: Sequence[Variable], most_bytes: int | None) -> int | None:
    of_parts = [tf_compat.row_ranges(part) or () for part in parts]
    ranges = sorted(each for ranges in of_parts for each in ranges)
    rows = None
    if most_bytes is not None:
        row_bytes = parts[0].dtype.size * parts[0].shape[1:].num_elements()
        rows = rows_at_once(ranges, row_bytes, most_bytes)
    if rows is None and any(len(ranges) > 1 for ranges in of_parts):
        rows = max(count for _, count in ranges)
    return rows
