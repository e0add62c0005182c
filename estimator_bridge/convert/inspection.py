"""Tells what a checkpoint holds: tables, slots, how they are stored, and which rows have moved."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.convert.bundle import CHUNK, Reader, Tensor
from estimator_bridge.convert.contents import OBJECT, Contents, Options
from estimator_bridge.convert.conversion import find
from estimator_bridge.convert.layout import Layout
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
    from_partition: str | None = None,
) -> dict[str, Any]:
    """Returns what a checkpoint holds, as values that JSON can hold.

    Args:
        path: the path of a checkpoint, or a directory, of which the latest is taken.
        spec, tables, optimizer, root: as in `conversion.convert`.
        initial: a checkpoint to count against the rows that differ; None takes that of step 0
            beside the checkpoint, if there is one.
        from_partition: how the writers spread tables over hosts, "div" or "mod"; None takes the
            spec's. It matters where the initial checkpoint was written by other hosts.

    Returns:
        "checkpoint", "form" ("names" or "object"), "global_step" (or None), "bytes" of all files,
        "initial" (or None), "tables", "variables" and "perhaps_tables", the names of the variables
        of which `convert` asks what they are. Each table has "name", "optimizer", "rows", "dim",
        "parts" (rows of each stored slice), "tensors" (name and bytes by part) and
        "rows_touched": how many rows differ from the initial checkpoint in any part that it has
        too; None without one, or where it is not known which of its rows is which.

    Raises:
        InvalidInput: `initial` has no such table.
        UnreadableCheckpoint: a file is missing or damaged; the message names it.
    """
    prefix = find(path)
    options = Options(spec=spec, tables=tables or {}, optimizer=optimizer, root=root)
    with Reader(prefix) as reader:
        contents = Contents(reader, options, strict=False)
        given = initial is not None
        if initial is None:
            beside = os.path.join(os.path.dirname(prefix), "model.ckpt-0")
            initial = beside if os.path.exists(f"{beside}.index") else None
        else:
            initial = find(initial)
        if initial is not None and os.path.abspath(initial) == os.path.abspath(prefix):
            initial = None
        strategy = from_partition or getattr(spec, "partition_strategy", None)
        if contents.form == OBJECT:
            strategy = "div"
        start = None if initial is None else Start(initial, strategy, required=given)
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
            "tables": list(_tables(reader, contents, start)),
            "variables": others,
            "perhaps_tables": [name for name, _ in contents.doubtful()],
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
        moved = ""
        if found["initial"] is not None:
            moved = f", {'unknown' if touched is None else touched} rows touched"
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
        doubt = variable["name"] in found["perhaps_tables"]
        perhaps = f", perhaps a table: --table NAME={variable['name']}" if doubt else ""
        yield f"variable {variable['name']}: {variable['dtype']}{variable['shape']}{perhaps}"


def _tables(reader: Reader, contents: Contents, start: Start | None) -> Iterator[dict[str, Any]]:
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
            "rows_touched": None if start is None else start.touched(reader, held),
        }


class Start(NamedTuple):
    """The checkpoint that training began with.

    Attributes:
        strategy: how the hosts of both checkpoints spread rows; None if that is not known.
        required: whether it must have all tables.
    """

    path: str
    strategy: str | None
    required: bool

    def touched(self, reader: Reader, names: Sequence[str]) -> int | None:
        """Returns how many rows differ in any of the tensors, the table first; None is unknown."""
        with Reader(self.path) as start:
            shape = reader.tensors[names[0]].shape
            same = [name for name in names if self._has(start, name, shape)]
            if names[0] not in same:
                if not self.required:
                    return None
                raise errors.InvalidInput(
                    f"{self.path}: it has no {names[0]!r} of {list(shape)} to compare with. Give "
                    "a checkpoint of the same tables as `initial`, or none."
                )
            now = [reader.tensors[name] for name in same]
            then = [start.tensors[name] for name in same]
            layouts = self._layouts(now[0], then[0])
            if layouts is None:
                return None
            count = 0
            step = max(1, CHUNK // max(1, now[0].row_size))
            for first in range(0, shape[0], step):
                ids = np.arange(first, min(shape[0], first + step))
                moved = np.zeros(len(ids), bool)
                for new, old in zip(now, then, strict=True):
                    a = reader.rows(new, layouts[0].stored(ids)).view(np.uint32)
                    b = start.rows(old, layouts[1].stored(ids)).view(np.uint32)
                    moved |= np.any(a != b, axis=1)
                count += int(np.count_nonzero(moved))
            return count

    @staticmethod
    def _has(start: Reader, name: str, shape: tuple[int, ...]) -> bool:
        tensor = start.tensors.get(name)
        return tensor is not None and tensor.shape == shape and tensor.dtype == tf.float32

    def _layouts(self, now: Tensor, then: Tensor) -> tuple[Layout, Layout] | None:
        rows = now.shape[0]
        parts = now.part_rows, then.part_rows
        if None in parts:
            return None
        # On as many hosts each row is where it was.
        strategy = "div" if parts[0] == parts[1] else self.strategy
        if strategy is None:
            return None
        new, old = (Layout(rows, len(part or ()), strategy) for part in parts)
        return new, old


def _span(parts: Sequence[int]) -> str:
    return str(parts[0]) if min(parts) == max(parts) else f"{min(parts)} to {max(parts)}"
