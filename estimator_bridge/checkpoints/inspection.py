"""Tells what a checkpoint holds: tables, slots, how they are stored, and which rows have moved."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from estimator_bridge import errors
from estimator_bridge.checkpoints.bundle import CHUNK, Reader
from estimator_bridge.checkpoints.contents import Contents, Options
from estimator_bridge.checkpoints.conversion import find
from estimator_bridge.sizes import readable
from tf2_engine.tables import PARAMETERS


def inspect(
    path: str,
    *,
    spec: Any = None,
    tables: dict[str, str] | None = None,
    optimizer: str | None = None,
    root: str | None = None,
    initial: str | None = None,
) -> dict[str, Any]:
    """Returns what a checkpoint holds, as values that JSON can hold.

    Args:
        path: the path of a checkpoint, or a directory, of which the latest is taken.
        spec, tables, optimizer, root: as in `conversion.convert`.
        initial: a checkpoint to count against the rows that differ; None takes that of step 0
            beside the checkpoint, if there is one.

    Returns:
        "checkpoint", "form" ("names" or "object"), "global_step" (or None), "bytes" of all files,
        "initial" (or None), "tables" and "variables". Each table has "name", "optimizer", "rows",
        "dim", "parts" (rows of each stored slice), "tensors" (name and bytes by part) and
        "rows_touched": how many rows differ from the initial checkpoint in any part; None without
        one.

    Raises:
        UnreadableCheckpoint: a file is missing or damaged; the message names it.
    """
    prefix = find(path)
    options = Options(spec=spec, tables=tables or {}, optimizer=optimizer, root=root)
    with Reader(prefix) as reader:
        contents = Contents(reader, options, strict=False)
        if initial is None:
            beside = os.path.join(os.path.dirname(prefix), "model.ckpt-0")
            initial = beside if os.path.exists(f"{beside}.index") else None
        else:
            initial = find(initial)
        if initial is not None and os.path.abspath(initial) == os.path.abspath(prefix):
            initial = None
        others = [
            {"name": name, "dtype": tensor.dtype.name, "shape": list(tensor.shape)}
            for name, tensor in ((name, reader.tensors[name]) for name, _ in contents.others())
        ]
        return {
            "checkpoint": prefix,
            "form": contents.form,
            "global_step": contents.step(reader),
            "bytes": sum(os.path.getsize(file) for file in reader.files),
            "initial": initial,
            "tables": list(_tables(reader, contents, initial)),
            "variables": others,
        }


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Yields what `inspect` returned as lines to read."""
    step = found["global_step"]
    yield (
        f"{found['checkpoint']}: {found['form']} checkpoint, "
        f"{'no global step' if step is None else f'step {step}'}, {readable(found['bytes'])}"
    )
    for table in found["tables"]:
        parts = table["parts"]
        stored = "whole" if len(parts) == 1 else f"{len(parts)} parts of {_span(parts)} rows"
        touched = table["rows_touched"]
        moved = "" if touched is None else f", {touched} rows touched"
        yield (
            f"table {table['name']}: [{table['rows']}, {table['dim']}], {table['optimizer']}, "
            f"{stored}{moved}"
        )
        for part, tensor in table["tensors"].items():
            if tensor is None:
                yield f"  {part}: missing"
            else:
                yield f"  {part}: {tensor['name']}, {readable(tensor['bytes'])}"
    for variable in found["variables"]:
        yield f"variable {variable['name']}: {variable['dtype']}{variable['shape']}"


def _tables(reader: Reader, contents: Contents, initial: str | None) -> Iterator[dict[str, Any]]:
    for table in contents.tables:
        name = table.parts[PARAMETERS]
        assert name is not None
        parameters = reader.tensors[name]
        rows, dim = parameters.shape
        held = [part for part in table.parts.values() if part is not None]
        yield {
            "name": table.known.name,
            "optimizer": table.kind.removesuffix("Parameters"),
            "rows": rows,
            "dim": dim,
            "parts": list(parameters.part_rows or ()),
            "tensors": {
                part: None if name is None else {"name": name, "bytes": reader.tensors[name].size}
                for part, name in table.parts.items()
            },
            "rows_touched": None if initial is None else _touched(reader, held, initial),
        }


def _touched(reader: Reader, names: Sequence[str], initial: str) -> int:
    """Returns how many rows differ in any of the tensors."""
    shape = reader.tensors[names[0]].shape
    count = 0
    with Reader(initial) as start:
        for name in names:
            if name not in start.tensors or start.tensors[name].shape != shape:
                raise errors.InvalidInput(
                    f"{initial}: it has no {name!r} of {list(shape)} to compare with."
                )
        step = max(1, CHUNK // max(1, reader.tensors[names[0]].row_size))
        for first in range(0, shape[0], step):
            rows = np.arange(first, min(shape[0], first + step))
            moved = np.zeros(len(rows), bool)
            for name in names:
                now = reader.rows(reader.tensors[name], rows).view(np.uint32)
                then = start.rows(start.tensors[name], rows).view(np.uint32)
                moved |= np.any(now != then, axis=1)
            count += int(np.count_nonzero(moved))
    return count


def _span(parts: Sequence[int]) -> str:
    return str(parts[0]) if min(parts) == max(parts) else f"{min(parts)} to {max(parts)}"
