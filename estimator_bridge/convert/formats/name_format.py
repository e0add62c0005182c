"""Name-based checkpoints, which legacy estimators write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import (
    Reader,
    RowLayout,
    StoredTensor,
    Writer,
    variable_names,
)
from estimator_bridge.checkpoint_files.bundle_protos import FLOAT32
from estimator_bridge.checkpoint_files.variable_names import KnownTable, Shapes
from estimator_bridge.convert import table_recognition
from estimator_bridge.convert.formats import checkpoint_format as common
from estimator_bridge.convert.formats.checkpoint_format import Contents, Gap, Moves, StoredTable
from estimator_bridge.convert.moves import TensorMove
from estimator_bridge.convert.options import ConversionOptions
from tf2_engine.sharding import PARAMETERS

_ONE_HOST = (
    'the tables are partitioned by "mod" but stored without slices, so one host is assumed to have '
    "written them. If there were more, and another program saved them again, give `from_hosts`"
)


class NameFormat(common.Format):
    """The format of legacy estimators."""

    form = "names"
    converts_to = "object"

    def _read(self, reader: Reader, options: ConversionOptions, strict: bool) -> Contents:
        shapes = _shapes(reader)
        tables, gaps = common.split_gaps(_tables(reader, options, shapes))
        parts = common.part_names(tables)
        variables = {}
        for name, tensor in reader.tensors.items():
            owners = [
                table.known.name
                for table in tables
                if name.startswith(f"{table.variable}/") and tensor.shape == table.parameters.shape
            ]
            if name not in parts and owners:
                reason = f"it belongs to table {owners[0]!r}, but is not a slot of its optimizer"
                gaps.append(Gap(name, reason))
            elif name not in parts:
                variables[name] = name
        known = {table.known.name: table.parameters.name for table in tables}
        listed = options.spec is not None
        doubt = "the spec does not have it" if listed else "its slots and name do not prove it"
        doubtful = [
            Gap(name, f"it looks like a table, but {doubt}")
            for name in table_recognition.may_be_tables(shapes, known, listed=listed)
            if name in variables
        ]
        return Contents(reader, self.form, tables, variables, gaps, doubtful)

    def writer_hosts(self, contents: Contents, options: ConversionOptions) -> common.WriterHosts:
        # Maps each table to the number of its parts and the number of its rows.
        slices = {t.parameters.name: (t.parameters.hosts, t.shape[0]) for t in contents.tables}
        whole = _whole(slices)
        slices = {name: count for name, count in slices.items() if name not in whole}
        stored = _common_hosts(slices)
        hosts = options.from_hosts or stored
        # If another program restored and saved the checkpoint, the slices no longer show the hosts.
        if stored > 1 and any(count != min(rows, hosts) for count, rows in slices.values()):
            raise errors.InvalidInput(
                f"`from_hosts`={hosts}, but the tables are stored in slices of {stored} hosts: "
                f"{slices}."
            )
        strategy = options.from_partition or options.spec_partition
        if strategy is None and hosts > 1:
            raise errors.InvalidInput(
                f"The tables were written by {hosts} hosts, but a checkpoint does not say whether "
                'rows were spread by "div" or "mod". Give the spec, or `from_partition`.'
            )
        doubtful = strategy == "mod" and stored == 1 and options.from_hosts is None
        note = _ONE_HOST if doubtful else None
        return common.WriterHosts(hosts, strategy or "div", note, whole)

    def check_hosts(self, options: ConversionOptions) -> None: ...

    def target(
        self, old: Contents, options: ConversionOptions, strategy: str, like: Reader | None
    ) -> common.CheckpointTarget:
        return NameTarget(options, strategy, like)


class NameTarget(common.CheckpointTarget):
    """A new name-based checkpoint. If `like` is given, it has the same names."""

    basename = "model.ckpt"
    needs_step = True

    def __init__(self, options: ConversionOptions, strategy: str, like: Reader | None) -> None:
        self._options = options
        self._strategy = options.to_partition or options.spec_partition or strategy
        self._like = like
        self._names_like: Shapes = {} if like is None else _shapes(like)

    def tables(self, tables: Sequence[StoredTable]) -> Moves:
        for table in tables:
            variable = table.variable or self._variable_of(table.known, table.shape)
            slots = variable_names.slot_variables(table.kind, variable, self._options.slots)
            layout = RowLayout(table.shape[0], self._options.to_hosts, self._strategy)
            yield from common.row_moves(table, {PARAMETERS: variable, **slots}, layout)

    def variable(self, tensor: StoredTensor, name: str | None, full_name: str | None) -> Moves:
        if name is None and full_name is not None:
            name = full_name if self._names_like.get(full_name) == tensor.shape else None
        if name is None:
            yield Gap(tensor.name, "its name in a name-based checkpoint is unknown")
        elif name != common.GLOBAL_STEP or self._options.global_step is None:
            yield common.variable_move(tensor, self._options.rename.get(name, name))

    def finish(self, writer: Writer, moves: Sequence[TensorMove], step: int | None) -> None:
        if step is not None and all(move.target != common.GLOBAL_STEP for move in moves):
            writer.value(common.GLOBAL_STEP, np.int64(step))

    def _variable_of(self, table: KnownTable, shape: tuple[int, ...]) -> str:
        options = self._options
        if table.name in options.tables:
            return options.tables[table.name]
        if self._like is not None:
            same_shape = {name: each for name, each in self._names_like.items() if each == shape}
            variable = variable_names.variable_of(table, same_shape)
            if variable is None:
                raise errors.Unmatched(
                    f"Table {table.name!r}: {self._like.prefix} has no variable of this table. "
                    f"Name it with --table {table.name}=VARIABLE."
                )
            return variable
        names = variable_names.own_names(table)
        if not table.scoped and len(names) == 1:
            return names[0]
        if options.scope is None or len(names) > 1:
            raise errors.InvalidInput(
                f"Table {table.name!r}: the model may have put its variable into a scope, as in "
                f"dense_features/{names[-1]}. Give the `scope` (with a spec), a checkpoint of the "
                f"program with the same scope (`like`), or --table {table.name}=VARIABLE."
            )
        return f"{options.scope}/{names[0]}" if options.scope else names[0]


def _shapes(reader: Reader) -> Shapes:
    return {name: t.shape for name, t in reader.tensors.items() if t.dtype == FLOAT32}


def _tables(
    reader: Reader, options: ConversionOptions, shapes: Shapes
) -> Iterator[StoredTable | Gap]:
    if options.no_tables:
        return
    known, variables = common.known_tables(options), options.tables
    if not variables and not known:
        hosts = {name: tensor.hosts for name, tensor in reader.tensors.items()}
        variables = table_recognition.tables_of_checkpoint(shapes, hosts)
    for table in known or [KnownTable(name) for name in variables]:
        variable = variables.get(table.name) or variable_names.variable_of(table, shapes)
        if variable is None or variable not in shapes:
            same = sorted(name for name, shape in shapes.items() if shape == table.shape)[:5]
            similar = f"among those of its shape, {same}" if same else "of its shape"
            yield Gap(variable or table.name, f"table {table.name!r} has no variable {similar}")
            continue
        kind = common.known_kind(table, options)
        kind = kind or table_recognition.kind_of_variable(variable, shapes)
        place = variable_names.made_on(kind, variable, shapes)
        slots = variable_names.slot_variables(kind, variable, place)
        names = {PARAMETERS: variable, **slots}
        yield from common.stored_table(reader, table, kind, names, variable)


def _whole(slices: Mapping[str, tuple[int, int]]) -> frozenset[str]:
    if all(count == 1 for count, _ in slices.values()):
        return frozenset()
    return frozenset(name for name, (count, rows) in slices.items() if count == 1 < rows)


def _common_hosts(slices: Mapping[str, tuple[int, int]]) -> int:
    # If each slice has one row, there may have been more hosts than slices.
    exact = {count for count, rows in slices.values() if count < rows}
    at_least = max((count for count, _ in slices.values()), default=1)
    hosts = exact.pop() if len(exact) == 1 else at_least
    if exact or any(count != min(rows, hosts) for count, rows in slices.values()):
        raise errors.InvalidInput(
            "The tables' slices do not all come from the same number of hosts. The slices and rows "
            f"of each table are {dict(slices)}. "
            "Restore the checkpoint in its program and save it without a partitioner."
        )
    return hosts
