"""Cuts the large variables of a job into slices of rows, as a checkpoint stores them.

Whoever restores a row reads the whole slice that has it: a table in one piece would need the memory
of the table on each parameter server that holds some of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from estimator_bridge.runtime.step.table_variables import TableVariables
from tf2_engine import sharding, tf_compat
from tf2_engine.types import Object, Variable

SLICE_BYTES = 40 << 20
"""The most bytes of a slice.

More than glibc keeps in its heaps when they are freed (32 MiB, M_MMAP_THRESHOLD_MAX), so that the
memory of each slice goes back to the system; and so few that three of them, of a session that ends
and of the next one, are about a hundred megabytes.
"""

_LARGE_PIECE = 2  # slices

_ALIGNED_ROWS = 16
"""A slice of a multiple of so many rows is stored without a copy, whatever a row's size."""

Ranges = Sequence[tuple[int, int]]
"""Rows of a stored tensor: the first of some consecutive ones, and their number."""


def in_slices(
    objects: Sequence[Object], tables: TableVariables, most_bytes: int | None
) -> list[Object]:
    """Returns variables and other objects as a Saver is to save them: large variables in slices.

    Args:
        objects: what a Saver takes; all parts of a variable are among them.
        tables: those of the job. Parts of a table in the order of "mod" are stored as they are:
            their slices say how many there are, and so which row is where.
        most_bytes: of a slice; None is as large as rows are consecutive.
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
    """Returns whether a stored piece is too large to be read again for each slice of it.

    Pieces of at most twice as many bytes as a slice are read twice: those of earlier versions.
    """
    return piece_bytes > max(_LARGE_PIECE * SLICE_BYTES, row_bytes)


def cut(ranges: Ranges, rows: int) -> Iterator[tuple[int, int]]:
    """Yields ranges of rows in pieces of `rows`; the last of a range may have fewer."""
    for start, count in ranges:
        for first in range(0, count, rows):
            yield start + first, min(rows, count - first)


def rows_at_once(ranges: Ranges, row_bytes: int, most_bytes: int) -> int | None:
    """Returns the rows of a slice of a tensor; None if its ranges are small enough.

    The slices are never those of equal parts, one for each of some hosts: from such parts it does
    not follow whether rows are in the order of their ids. (It does from parts of a single row.)

    Args:
        ranges: those of all parts of the tensor, by their first rows.
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
    """Returns the rows of a slice of a tensor; None if a Saver stores its parts as they are."""
    of_parts = [tf_compat.row_ranges(part) or () for part in parts]
    ranges = sorted(each for ranges in of_parts for each in ranges)
    rows = None
    if most_bytes is not None:
        row_bytes = parts[0].dtype.size * parts[0].shape[1:].num_elements()
        rows = rows_at_once(ranges, row_bytes, most_bytes)
    if rows is None and any(len(ranges) > 1 for ranges in of_parts):
        rows = max(count for _, count in ranges)
    return rows
