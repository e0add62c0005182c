"""The interface of a checkpoint format, which reads checkpoints and plans new ones."""

from __future__ import annotations

import abc
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple, TypeAlias, TypeVar

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import (
    ObjectPath,
    Reader,
    RowLayout,
    StoredTensor,
    VariableLayout,
    Writer,
    bundle,
)
from estimator_bridge.checkpoint_files.bundle_protos import FLOAT32
from estimator_bridge.checkpoint_files.variable_names import (
    KnownTable,
    optimizer_kind,
    tables_of_spec,
)
from estimator_bridge.convert.moves import CopyMove, PartRows, RowMove, TensorMove
from estimator_bridge.convert.options import ConversionOptions
from tf2_engine.sharding import PARAMETERS
from tf2_engine.sparsecore_layout import TableLayout

GLOBAL_STEP = "global_step"

Item = TypeVar("Item")


class Gap(NamedTuple):
    """A tensor without a counterpart, and the reason."""

    name: str
    reason: str


Moves: TypeAlias = Iterator[TensorMove | Gap]
"""The moves of tensors, and a `Gap` for each tensor without a counterpart."""


class StoredTable(NamedTuple):
    """A table in a checkpoint."""

    known: KnownTable
    kind: str  # optimizer, a key of `OPTIMIZERS`
    parameters: StoredTensor
    slots: Mapping[str, StoredTensor | None]  # None if the checkpoint lacks the slot
    variable: str | None = None  # the variable in a legacy estimator; None if unknown
    # The place of each row in the tensors. None if rows are in the order of their ids.
    layout: VariableLayout | None = None

    @property
    def parts(self) -> dict[str, StoredTensor | None]:
        return {PARAMETERS: self.parameters, **self.slots}

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and dimension, without padding."""
        if isinstance(self.layout, TableLayout):
            return self.layout.rows, self.layout.dim
        rows, dim = self.parameters.shape
        return rows, dim

    def rows(self, part: str) -> PartRows:
        """The rows of the table or of a slot; a missing slot gets its initial value."""
        source = self.parts[part]
        if source is None and part not in self.known.slot_values:
            raise errors.InvalidInput(
                f"Table {self.known.name!r} lacks the slot {part!r}, and only the spec contains "
                "the slot's initial value. Give the spec."
            )
        fill = 0.0 if source is not None else self.known.slot_values[part]
        return PartRows(source, self.shape, self.layout or RowLayout(self.shape[0]), fill)


@dataclasses.dataclass(frozen=True)
class Contents:
    """The contents of a checkpoint: its tables, and everything else."""

    reader: Reader
    form: str
    tables: Sequence[StoredTable]  # the spec's tables or, without a spec, recognised tables
    others: Mapping[str, str | None]  # the other tensors, with their legacy names if known
    # Missing parts of tables, and tensors below a table that are not its slots.
    gaps: Sequence[Gap] = ()
    doubtful: Sequence[Gap] = ()  # ordinary variables that may be tables
    # Maps keys of variables to the variables' names in the program that saved the objects.
    full_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    root: ObjectPath | None = (
        None  # path of the object with the tables; None if there are no objects
    )
    notes: Sequence[str] = ()

    def step(self) -> int | None:
        for name, variable in self.others.items():
            if variable == GLOBAL_STEP:
                tensor = self.reader.tensors[name]
                if tensor.shape or not tensor.dtype.is_integer or tensor.sliced:
                    raise errors.InvalidInput(f"{name!r} must be one integer, got {tensor}.")
                return int(self.reader.value(name))
        return None


class WriterHosts(NamedTuple):
    """How the writer spread tables over hosts. A table in `whole` was stored by one host."""

    hosts: int = 1
    strategy: str = "div"
    note: str | None = None
    whole: frozenset[str] = frozenset()

    def layout_of(self, table: StoredTable) -> RowLayout:
        hosts = 1 if table.parameters.name in self.whole else self.hosts
        return RowLayout(table.shape[0], hosts, self.strategy)


class CheckpointTarget(abc.ABC):
    """Writes a new checkpoint, whose files are named after `basename`."""

    basename: ClassVar[str]
    needs_step: ClassVar[bool] = False
    notes: Sequence[str] = ()  # assumptions; complete after the call to `tables`

    @abc.abstractmethod
    def tables(self, tables: Sequence[StoredTable]) -> Moves: ...

    @abc.abstractmethod
    def variable(self, tensor: StoredTensor, name: str | None, full_name: str | None) -> Moves: ...

    def unchanged(self, targets: set[str]) -> Iterator[TensorMove]:
        yield from ()

    def writer(
        self, prefix: str, moves: Sequence[TensorMove], wrote: Callable[[int], None]
    ) -> Writer:
        return Writer(prefix, wrote)

    @abc.abstractmethod
    def finish(self, writer: Writer, moves: Sequence[TensorMove], step: int | None) -> None:
        """Writes what no move writes: the step, and the object graph."""

    def reader(self, prefix: str) -> Reader:
        return Reader(prefix)

    def complete(self, prefix: str, lines: Sequence[str]) -> None:
        """Writes the checkpoint's other files, after checking that TensorFlow finds all tensors."""
        import tensorflow as tf  # inspecting, which uses this module, works without TensorFlow

        folder, name = os.path.split(prefix)
        with self.reader(prefix) as result:
            if {seen for seen, _ in tf.train.list_variables(prefix)} != set(result.tensors):
                raise errors.CannotWrite(
                    f"{prefix}: TensorFlow cannot read everything that was written."
                )
        state = f'model_checkpoint_path: "{name}"\nall_model_checkpoint_paths: "{name}"\n'
        bundle.write_durably(os.path.join(folder, "checkpoint"), state.encode())


class Format(abc.ABC):
    """A format of checkpoints, which are converted to the form `converts_to` by default."""

    form: ClassVar[str]
    converts_to: ClassVar[str]
    partitions: ClassVar[tuple[str | None, ...]] = (None, "div")
    rows_read: ClassVar[str] = ""
    rows_written: ClassVar[str] = ""

    def read(self, reader: Reader, options: ConversionOptions, *, strict: bool = True) -> Contents:
        """Reads a checkpoint. With `strict`, a table with an uncertain optimizer is an error."""
        contents = self._read(reader, options, strict)
        if options.no_tables:
            return dataclasses.replace(contents, doubtful=())
        if strict and not contents.tables and not contents.gaps:
            names = [name for name, _ in contents.doubtful]
            raise errors.InvalidInput(
                f"{reader.prefix}: no table was found. Give the spec, or each table with "
                f"--table NAME=VARIABLE{f'; these may be tables: {names}' if names else ''}."
            )
        return contents

    @abc.abstractmethod
    def _read(self, reader: Reader, options: ConversionOptions, strict: bool) -> Contents: ...

    def writer_hosts(self, contents: Contents, options: ConversionOptions) -> WriterHosts:
        if options.from_partition not in self.partitions or options.from_hosts:
            raise _no_hosts("from", self.rows_read)
        return WriterHosts()

    def check_hosts(self, options: ConversionOptions) -> None:
        if options.to_partition not in self.partitions or options.to_hosts != 1:
            raise _no_hosts("to", self.rows_written)

    @abc.abstractmethod
    def target(
        self, old: Contents, options: ConversionOptions, strategy: str, like: Reader | None
    ) -> CheckpointTarget:
        """Plans a new checkpoint. In the old checkpoint, rows are in the order of `strategy`."""


def _no_hosts(side: str, why: str) -> errors.InvalidInput:
    return errors.InvalidInput(
        f"`{side}_partition` and `{side}_hosts` are for name-based checkpoints; {why}."
    )


def split_gaps(items: Iterable[Item | Gap]) -> tuple[list[Item], list[Gap]]:
    mixed = list(items)
    gaps = [item for item in mixed if isinstance(item, Gap)]
    return [item for item in mixed if not isinstance(item, Gap)], gaps


def part_names(tables: Iterable[StoredTable]) -> set[str]:
    return {part.name for table in tables for part in table.parts.values() if part}


def known_tables(options: ConversionOptions) -> list[KnownTable]:
    known = [] if options.spec is None else tables_of_spec(options.spec)
    unknown = set(options.tables) - {table.name for table in known}
    if known and unknown:
        raise errors.InvalidInput(
            f"The spec has no table {sorted(unknown)}; its tables are "
            f"{[table.name for table in known]}."
        )
    return known


def known_kind(table: KnownTable, options: ConversionOptions) -> str | None:
    if table.kind is not None or options.optimizer is None:
        return table.kind
    return optimizer_kind(options.optimizer)


def stored_table(
    reader: Reader,
    table: KnownTable,
    kind: str,
    names: Mapping[str, str],
    variable: str | None = None,
) -> Iterator[StoredTable | Gap]:
    parameters = reader.tensors[names[PARAMETERS]]
    if table.shape is not None and table.shape != parameters.shape:
        raise errors.InvalidInput(
            f"Table {table.name!r}: the spec says {list(table.shape)}, but {parameters.name!r} is "
            f"{list(parameters.shape)}. Give the checkpoint's vocabulary and dimension."
        )
    slots = {}
    for part, name in names.items():
        tensor = reader.tensors.get(name)
        if tensor is None:
            yield Gap(name, f"table {table.name!r} has no such slot")
        else:
            _check(table, tensor, parameters)
        if part != PARAMETERS:
            slots[part] = tensor
    yield StoredTable(table, kind, parameters, slots, variable)


def _check(table: KnownTable, tensor: StoredTensor, parameters: StoredTensor) -> None:
    shape = parameters.shape
    is_matrix = len(shape) == 2 and min(shape) >= 1
    if tensor.shape != shape or not is_matrix or tensor.dtype != FLOAT32:
        raise errors.InvalidInput(
            f"Table {table.name!r}: {tensor.name!r} is {tensor}, but must be float32 and have the "
            f"table's shape, {list(shape)}."
        )
    if tensor.part_rows is None or tensor.hosts != parameters.hosts:
        raise errors.InvalidInput(
            f"Table {table.name!r}: {tensor.name!r} is stored in slices of {tensor.part_rows} "
            "rows, but a TPU never stores a table like that. Restore the checkpoint in its program "
            "and save it without a partitioner."
        )


def row_moves(
    table: StoredTable, places: Mapping[str, str], layout: RowLayout | None = None
) -> Iterator[RowMove]:
    layout = layout or RowLayout(table.shape[0])
    for part, target in places.items():
        described = f"table {table.known.name!r}, {part}"
        yield RowMove(target, described, table.shape, table.rows(part), layout)


def variable_move(tensor: StoredTensor, target: str, description: str = "variable") -> CopyMove:
    return CopyMove(target, description, tensor.shape, tensor)
