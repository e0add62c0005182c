"""Name-based checkpoints, which legacy estimators write: one tensor for each variable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import (
    Reader,
    RowLayout,
    StoredTensor,
    Writer,
    variable_names,
)
from estimator_bridge.checkpoint_files.variable_names import KnownTable, Shapes
from estimator_bridge.convert import table_recognition
from estimator_bridge.convert.formats.checkpoint_format import (
    GLOBAL_STEP,
    Contents,
    Format,
    Gap,
    StoredTable,
    Target,
    WriterHosts,
    known_kind,
    known_tables,
    odd_slices,
    row_moves,
    stored_table,
    variable_move,
)
from estimator_bridge.convert.moves import TensorMove
from estimator_bridge.convert.options import ConversionOptions
from tf2_engine import sharding
from tf2_engine.tables import PARAMETERS


class NameFormat(Format):
    """The format of legacy estimators."""

    form = "names"
    converts_to = "object"

    def _read(self, reader: Reader, options: ConversionOptions, strict: bool) -> Contents:
        shapes = _shapes(reader)
        tables: list[StoredTable] = []
        gaps: list[Gap] = []
        for table, variable in _variables_of_tables(reader, options, shapes):
            if variable is None or variable not in shapes:
                reason = f"table {table.name!r} has no variable {_similar(table, shapes)}"
                gaps.append(Gap(variable or table.name, reason))
                continue
            kind = known_kind(table, options)
            kind = kind or table_recognition.kind_of_variable(variable, shapes)
            place = variable_names.made_on(kind, variable, shapes)
            names = {
                PARAMETERS: variable,
                **variable_names.slot_variables(kind, variable, place),
            }
            stored, missing = stored_table(reader, table, kind, names, variable)
            tables.append(stored)
            gaps.extend(missing)
        parts = {part.name for table in tables for part in table.parts.values() if part}
        others = [tensor for name, tensor in reader.tensors.items() if name not in parts]
        owners = {tensor.name: _owner(tensor, tables) for tensor in others}
        variables = {name: name for name, owner in owners.items() if owner is None}
        strays = [
            Gap(name, f"it belongs to table {owner!r}, but is no slot of its optimizer")
            for name, owner in owners.items()
            if owner is not None
        ]
        return Contents(
            reader,
            self.form,
            tuple(tables),
            variables,
            (*gaps, *strays),
            tuple(_doubtful(shapes, tables, variables, listed=options.spec is not None)),
        )

    def writer_hosts(self, contents: Contents, options: ConversionOptions) -> WriterHosts:
        slices = {table.parameters.name: _slices(table) for table in contents.tables}
        stored = _common_hosts(slices)
        hosts = options.from_hosts or stored
        # A checkpoint that another program restored and saved has no slices any more.
        if stored > 1 and any(count != min(rows, hosts) for count, rows in slices.values()):
            raise errors.InvalidInput(
                f"`from_hosts`={hosts}, but the tables are stored in slices of {stored} hosts: "
                f"{slices}."
            )
        strategy = options.from_partition or options.spec_partition
        if strategy is None and hosts > 1:
            raise errors.InvalidInput(
                f"The tables were written by {hosts} hosts, and a checkpoint does not say "
                'whether with "div" or "mod". Give the spec, or `from_partition`.'
            )
        note = None
        if strategy == "mod" and stored == 1 and options.from_hosts is None:
            note = (
                'partitioned by "mod", but stored without slices, so that one host is taken for '
                "the writer. If there were more, and another program saved it again, give "
                "`from_hosts`"
            )
        return WriterHosts(hosts, strategy or "div", note)

    def target(
        self, old: Contents, options: ConversionOptions, strategy: str, like: Reader | None
    ) -> Target:
        return NameTarget(options, strategy, like)


class NameTarget(Target):
    """A new name-based checkpoint.

    Args:
        strategy: the "div" or "mod" of the old checkpoint.
        like: a checkpoint whose names of tables and variables it takes.
    """

    form = "names"
    basename = "model.ckpt"
    needs_step = True

    def __init__(self, options: ConversionOptions, strategy: str, like: Reader | None) -> None:
        self._options = options
        self._strategy = options.to_partition or options.spec_partition or strategy
        self._like = like
        self._names_like: Shapes = {} if like is None else _shapes(like)

    def table(self, table: StoredTable, layout: RowLayout) -> Iterator[TensorMove | Gap]:
        shape = table.parameters.shape
        variable = table.variable or self._variable_of(table.known, shape)
        slots = variable_names.slot_variables(table.kind, variable, self._options.slots)
        names = {PARAMETERS: variable, **slots}
        new_layout = RowLayout(shape[0], self._options.to_hosts, self._strategy)
        places = {part: (name, None) for part, name in names.items()}
        yield from row_moves(table, places, layout, new_layout)

    def variable(
        self, tensor: StoredTensor, name: str | None, full_name: str | None
    ) -> Iterator[TensorMove | Gap]:
        if name is None and full_name is not None:
            name = full_name if self._names_like.get(full_name) == tensor.shape else None
        if name is None:
            reason = "no variable of a name-based checkpoint is known for it"
            yield Gap(tensor.name, reason)
        elif name != GLOBAL_STEP or self._options.global_step is None:
            yield variable_move(tensor, self._options.rename.get(name, name))

    def finish(self, writer: Writer, moves: Sequence[TensorMove], step: int | None) -> None:
        if step is not None and all(move.target != GLOBAL_STEP for move in moves):
            writer.value(GLOBAL_STEP, np.int64(step))

    def _variable_of(self, table: KnownTable, shape: tuple[int, ...]) -> str:
        """Returns the name of the variable of a table."""
        options = self._options
        if table.name in options.tables:
            return options.tables[table.name]
        if self._like is not None:
            return _variable_like(table, shape, self._names_like, self._like.prefix)
        own = variable_names.own_names(table)
        if not table.scoped and len(own) == 1:
            return own[0]
        if options.scope is None or len(own) > 1:
            raise errors.InvalidInput(
                f"Table {table.name!r}: its variable may be in a scope that the model gave it, as "
                f"in dense_features/{own[-1]}. With a spec, give the `scope`, or a checkpoint to "
                f"take it from (`like`), or --table {table.name}=VARIABLE."
            )
        return f"{options.scope}/{own[0]}" if options.scope else own[0]


def _shapes(reader: Reader) -> Shapes:
    """Returns the shapes of the tensors that may be parts of tables."""
    return {name: t.shape for name, t in reader.tensors.items() if t.dtype == tf.float32}


def _variables_of_tables(
    reader: Reader, options: ConversionOptions, shapes: Shapes
) -> Iterator[tuple[KnownTable, str | None]]:
    """Yields the tables of the spec, the user or the checkpoint, and the variable of each."""
    known, variables = known_tables(options), options.tables
    if not variables and not known:
        num_slices = {name: len(tensor.slices) for name, tensor in reader.tensors.items()}
        variables = table_recognition.tables_of_checkpoint(shapes, num_slices)
    for table in known or [KnownTable(name) for name in variables]:
        yield table, variables.get(table.name) or variable_names.variable_of(table, shapes)


def _similar(table: KnownTable, shapes: Shapes) -> str:
    """Returns which variables have the shape of a table, as the end of a sentence."""
    same = sorted(name for name, shape in shapes.items() if shape == table.shape)[:5]
    return f"among those of its shape, {same}" if same else "of its shape"


def _owner(tensor: StoredTensor, tables: Sequence[StoredTable]) -> str | None:
    """Returns the table to which a tensor belongs by name and shape; None if to none."""
    for table in tables:
        if tensor.name.startswith(f"{table.variable}/") and tensor.shape == table.parameters.shape:
            return table.known.name
    return None


def _doubtful(
    shapes: Shapes, tables: Sequence[StoredTable], variables: Mapping[str, str], *, listed: bool
) -> Iterator[Gap]:
    """Yields the variables outside of tables that may be tables.

    Args:
        listed: whether a spec lists the tables.
    """
    known = {table.known.name: table.parameters.name for table in tables}
    doubt = "is none of the spec" if listed else "no slot or name says so for certain"
    for name in table_recognition.may_be_tables(shapes, known, listed=listed):
        if name in variables:
            yield Gap(name, f"it looks like a table, but {doubt}")


def _slices(table: StoredTable) -> tuple[int, int]:
    """Returns the number of slices in which a table is stored, and of its rows."""
    rows = table.parameters.part_rows
    assert rows is not None  # as `stored_table` made sure
    if rows != sharding.shard_rows(sum(rows), len(rows)):
        raise odd_slices(f"{table.parameters.name!r}", rows)
    return len(rows), sum(rows)


def _common_hosts(slices: Mapping[str, tuple[int, int]]) -> int:
    """Returns the number of hosts that fits the slices of all tables.

    Args:
        slices: by table, the number of slices and of rows.
    """
    # A table with a row in each slice may have had more hosts than that.
    exact = {count for count, rows in slices.values() if count < rows}
    at_least = max((count for count, _ in slices.values()), default=1)
    hosts = exact.pop() if len(exact) == 1 else at_least
    if exact or any(count != min(rows, hosts) for count, rows in slices.values()):
        raise errors.InvalidInput(
            f"The tables are spread over different hosts; (slices, rows) are {dict(slices)}. "
            "Restore the checkpoint in its program and save it without a partitioner."
        )
    return hosts


def _variable_like(
    table: KnownTable, shape: tuple[int, ...], names_like: Shapes, prefix: str
) -> str:
    """Returns the variable of a table in a checkpoint that the new one is to be like."""
    same_shape = {name: each for name, each in names_like.items() if each == shape}
    variable = variable_names.variable_of(table, same_shape)
    if variable is None:
        raise errors.Unmatched(
            f"Table {table.name!r}: {prefix} has no variable of it. Say which with "
            f"--table {table.name}=VARIABLE."
        )
    return variable
