"""Checks that the tensors of a checkpoint can be the parameters and slots of a table."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.checkpoint_files.bundle_reader import Reader
from estimator_bridge.checkpoint_files.stored_tensor import StoredTensor
from estimator_bridge.checkpoint_files.variable_names import KnownTable
from estimator_bridge.convert.formats.checkpoint_format import Gap, StoredTable
from tf2_engine.tables import PARAMETERS


def stored_table(
    reader: Reader,
    table: KnownTable,
    kind: str,
    names: Mapping[str, str],
    variable: str | None = None,
) -> tuple[StoredTable, list[Gap]]:
    """Returns a table of a checkpoint, and the slots that it lacks.

    Args:
        kind: its optimizer.
        names: the tensor of each part, by the engine's names; that of the parameters exists.
        variable: the name of its legacy variable, if it is known.

    Raises:
        InvalidInput: a tensor has another shape or type than the table, or odd slices.
    """
    parameters = reader.tensors[names[PARAMETERS]]
    if table.shape is not None and table.shape != parameters.shape:
        raise errors.InvalidInput(
            f"Table {table.name!r}: the spec says {list(table.shape)}, but {parameters.name!r} is "
            f"{list(parameters.shape)}. Vocabulary and dimension must be those of the checkpoint."
        )
    parts = {part: reader.tensors.get(name) for part, name in names.items()}
    for tensor in parts.values():
        if tensor is not None:
            _check(table, tensor, parameters)
    gaps = [
        Gap(name, f"table {table.name!r} has no such slot")
        for part, name in names.items()
        if parts[part] is None
    ]
    del parts[PARAMETERS]
    return StoredTable(table, kind, parameters, parts, variable), gaps


def odd_slices(name: str, rows: tuple[int, ...] | None) -> errors.InvalidInput:
    """Returns the error for a tensor whose slices are not those of hosts."""
    return errors.InvalidInput(
        f"{name} is stored in slices of {rows} rows, which no table of a TPU is. Restore the "
        "checkpoint in its program and save it without a partitioner."
    )


def _check(table: KnownTable, tensor: StoredTensor, parameters: StoredTensor) -> None:
    shape = parameters.shape
    is_matrix = len(shape) == 2 and min(shape) >= 1
    if tensor.shape != shape or not is_matrix or tensor.dtype != tf.float32:
        raise errors.InvalidInput(
            f"Table {table.name!r}: {tensor.name!r} is {tensor}, but must be float32 and of the "
            f"shape of the table, {list(shape)}."
        )
    if tensor.part_rows is None or tensor.part_rows != parameters.part_rows:
        raise odd_slices(f"Table {table.name!r}: {tensor.name!r}", tensor.part_rows)
