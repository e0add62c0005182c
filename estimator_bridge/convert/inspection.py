"""Describes a checkpoint: its tables, slots and slices, and how many rows training changed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import CHUNK, Reader, RowLayout, StoredTensor, find
from estimator_bridge.checkpoint_files.bundle_protos import FLOAT32
from estimator_bridge.convert.formats import format_of, open_checkpoint
from estimator_bridge.convert.formats.checkpoint_format import StoredTable
from estimator_bridge.convert.formats.sparsecore_format import layouts_of
from estimator_bridge.convert.moves import chunks
from estimator_bridge.convert.options import ConversionOptions
from estimator_bridge.progress_line import Phase, Progress, no_progress
from estimator_bridge.readable_sizes import readable
from tf2_engine.sparsecore_layout import TableLayout
from tf2_engine.types import Array, Object

_OTHER_LAYOUT = (
    "stock's TPUEmbeddingV2 restores the slots only into the same layout. If the number of cores, "
    "SparseCores or samples of the first feature differs, or the stacks, it silently resets all "
    "slots. Convert with --to sparsecore, pass a checkpoint of the reading program with --like, "
    "and call `assert_consumed()` on what `restore` returns"
)

Inspection: TypeAlias = dict[str, Object]
"""Describes a checkpoint, or one of its tables or variables, in values for JSON; see `inspect`."""


def inspect(
    path: str,
    *,
    spec: Object = None,
    tables: Mapping[str, str] | None = None,
    optimizer: str | None = None,
    root: str | None = None,
    initial: str | None = None,
    from_partition: str | None = None,
    progress: Progress = no_progress,
) -> Inspection:
    """Describes a checkpoint as a dict for JSON.

    Args:
        path: a checkpoint, or a directory whose latest checkpoint is described.
        spec, tables, optimizer, root: as in `conversion.convert`.
        initial: a checkpoint to compare rows with; by default the one of step 0 in the same
            directory.
        from_partition: how both checkpoints spread tables over hosts: "div" or "mod" (by default
            the spec's). This is only needed if they were written by different numbers of hosts.
        progress: called with the phase, the rows compared, and all rows.

    Returns:
        "checkpoint", "form" ("names", "object", "sparsecore" or "torch"), "global_step" (or None),
        "bytes" of all files, "initial" (or None), "tables", "variables", "perhaps_tables"
        (variables that may be tables; tell `convert` which are), and "notes". Each table has
        "name", "optimizer", "rows", "dim", "parts" (rows of each stored slice), "tensors" (name and
        bytes of the parameters and each slot; on SparseCores the table's share of its stack),
        "sparse_cores" (None, or the table's place on SparseCores) and "rows_touched" (how many rows
        differ from the initial checkpoint, slots included; None if unknown).

    Raises:
        InvalidInput: `initial` has no such table.
        UnreadableCheckpoint: a file is missing or damaged.
    """
    options = ConversionOptions(spec=spec, tables=tables or {}, optimizer=optimizer, root=root)
    with open_checkpoint(path) as reader:
        prefix = reader.prefix
        contents = format_of(reader).read(reader, options, strict=False)
        strategy = from_partition or options.spec_partition
        if contents.form != "names":
            strategy = "div"
        start = _initial(prefix, initial)
        descriptions = [_table(table) for table in contents.tables]
        if start is not None and descriptions:
            rows = sum(table.shape[0] for table in contents.tables)
            compared = Phase(progress, "comparing rows", rows)
            with Reader(start) as first:
                for description, table in zip(descriptions, contents.tables, strict=True):
                    touched = _touched(
                        reader, first, table, strategy, initial is not None, compared
                    )
                    description["rows_touched"] = touched
        return {
            "checkpoint": prefix,
            "form": contents.form,
            "global_step": contents.step(),
            "bytes": sum(os.path.getsize(file) for file in reader.files),
            "initial": start,
            "tables": descriptions,
            "variables": [
                {"name": name, "dtype": tensor.dtype.name, "shape": list(tensor.shape)}
                for name, tensor in reader.tensors.items()
                if name in contents.others
            ],
            "perhaps_tables": [name for name, _ in contents.doubtful],
            "notes": [*([_OTHER_LAYOUT] if contents.form == "sparsecore" else []), *contents.notes],
        }


def lines(inspection: Inspection) -> Iterator[str]:
    step = inspection["global_step"]
    yield (
        f"{inspection['checkpoint']}: {inspection['form']} checkpoint, "
        f"{'no global step' if step is None else f'step {step}'}, {readable(inspection['bytes'])}"
    )
    for table in inspection["tables"]:
        yield from _table_lines(table, compared=inspection["initial"] is not None)
    for variable in inspection["variables"]:
        doubt = variable["name"] in inspection["perhaps_tables"]
        perhaps = f", perhaps a table: --table NAME={variable['name']}" if doubt else ""
        yield f"variable {variable['name']}: {variable['dtype']}{variable['shape']}{perhaps}"
    yield from (f"note: {note}." for note in inspection["notes"])


def _table_lines(table: Inspection, *, compared: bool) -> Iterator[str]:
    least, most = min(table["parts"]), max(table["parts"])
    stored, where = "whole", table["sparse_cores"]
    if where is not None:
        stored = f"stack {where['stack']!r} on {where['cores']} × {where['per_core']} SparseCores"
    elif len(table["parts"]) > 1:
        span = least if least == most else f"{least} to {most}"
        stored = f"{len(table['parts'])} parts of {span} rows"
    touched = "unknown" if table["rows_touched"] is None else table["rows_touched"]
    yield (
        f"table {table['name']}: [{table['rows']}, {table['dim']}], {table['optimizer']}, "
        f"{stored}{f', {touched} rows touched' if compared else ''}"
    )
    if where is not None:
        yield (
            f"  row 0 on SparseCore {where['rotation']}; in each shard rows {where['row_offset']} "
            f"to {where['row_offset'] + where['shard_rows'] - 1} of {where['stack_rows']}, padded "
            f"to [{where['padded_rows']}, {where['padded_dim']}]"
        )
    for part, tensor in table["tensors"].items():
        held = f"{tensor['name']}, {readable(tensor['bytes'])}" if tensor else "missing"
        yield f"  {part}: {held}"


def _initial(prefix: str, wanted: str | None) -> str | None:
    beside = os.path.join(os.path.dirname(prefix), "model.ckpt-0")
    if wanted is None and not os.path.exists(f"{beside}.index"):
        return None
    path = beside if wanted is None else find(wanted)
    return None if os.path.abspath(path) == os.path.abspath(prefix) else path


def _table(table: StoredTable) -> Inspection:
    rows, dim = table.shape
    return {
        "name": table.known.name,
        "optimizer": table.kind.removesuffix("Parameters"),
        "rows": rows,
        "dim": dim,
        "parts": list(table.parameters.part_rows or ()),
        "tensors": {
            part: None if tensor is None else {"name": tensor.name, "bytes": _size(table, tensor)}
            for part, tensor in table.parts.items()
        },
        "sparse_cores": _sparse_cores(table),
        "rows_touched": None,
    }


def _size(table: StoredTable, tensor: StoredTensor) -> int:
    if isinstance(table.layout, TableLayout):
        return 4 * table.layout.padded_rows * table.layout.padded_dim
    return tensor.size


def _sparse_cores(table: StoredTable) -> Inspection | None:
    layout = table.layout
    if not isinstance(layout, TableLayout):
        return None
    names = "stack stack_rows row_offset shard_rows rotation padded_rows padded_dim features"
    cores = {"cores": layout.sparse_cores.cores, "per_core": layout.sparse_cores.per_core}
    return {**cores, **{name: getattr(layout, name) for name in names.split()}}


def _touched(
    reader: Reader,
    initial: Reader,
    table: StoredTable,
    strategy: str | None,
    required: bool,
    compared: Phase,
) -> int | None:
    if isinstance(table.layout, TableLayout) and layouts_of(initial) != layouts_of(reader):
        return None
    shape = table.parameters.shape
    pairs = []
    for part in filter(None, table.parts.values()):
        before = initial.tensors.get(part.name)
        if before is not None and (before.shape, before.dtype) == (shape, FLOAT32):
            pairs.append((part, before))
    if not pairs or pairs[0][0] is not table.parameters:
        if not required:
            return None
        raise errors.InvalidInput(
            f"{initial.prefix}: it has no {table.parameters.name!r} of {list(shape)} to "
            "compare with. As `initial`, give a checkpoint with the same tables, or leave "
            "`initial` out."
        )
    hosts = [tensor.hosts for tensor in pairs[0]]
    # With the same number of hosts, each row is in the same place.
    strategy = "div" if hosts[0] == hosts[1] else strategy
    if strategy is None or any(tensor.part_rows is None for tensor in pairs[0]):
        return None
    now, then = (table.layout or RowLayout(shape[0], count, strategy) for count in hosts)
    touched = 0
    for ids in chunks(table.shape[0], max(1, CHUNK // max(1, table.parameters.row_size))):
        moved = _moved(reader, initial, pairs, now.stored(ids), then.stored(ids))
        touched += int(np.count_nonzero(moved))
        compared.add(len(ids))
    return touched


def _moved(
    reader: Reader,
    initial: Reader,
    pairs: Sequence[tuple[StoredTensor, StoredTensor]],
    now: Array,
    then: Array,
) -> Array:
    moved = np.zeros(len(now), bool)
    for new, old in pairs:
        a = reader.rows(new, now).view(np.uint32)
        b = initial.rows(old, then).view(np.uint32)
        moved |= np.any(a != b, axis=1)
    return moved
