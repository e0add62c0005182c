"""The interface of a format: how to read a checkpoint, and how to place tensors in a new one."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import (
    Path,
    Reader,
    RowLayout,
    StoredTensor,
    Writer,
    variable_names,
)
from estimator_bridge.checkpoint_files.variable_names import KnownTable
from estimator_bridge.convert.moves import CopyMove, RowMove, TensorMove
from estimator_bridge.convert.options import ConversionOptions
from tf2_engine.tables import PARAMETERS

GLOBAL_STEP = "global_step"


class Gap(NamedTuple):
    """A tensor without a counterpart, and why it has none."""

    name: str
    reason: str


class StoredTable(NamedTuple):
    """A table in a checkpoint.

    Attributes:
        known: the table of the spec.
        kind: its optimizer, a key of `OPTIMIZERS`.
        parameters: its tensor.
        slots: the tensors of its slots, None for a slot that the checkpoint lacks.
        variable: the name of its legacy variable; None if the checkpoint does not tell.
    """

    known: KnownTable
    kind: str
    parameters: StoredTensor
    slots: Mapping[str, StoredTensor | None]
    variable: str | None = None

    @property
    def parts(self) -> dict[str, StoredTensor | None]:
        """The parameters and the slots, by the engine's names."""
        return {PARAMETERS: self.parameters, **self.slots}


@dataclasses.dataclass(frozen=True)
class Contents:
    """What a checkpoint holds: its tables, and everything else.

    Attributes:
        form: "names" or "object".
        tables: those of the spec, else those that can be recognised.
        others: the tensors that are not parts of tables, and the legacy name of each variable, None
            if it is unknown.
        gaps: what tables lack, and tensors of tables that are none of their slots.
        doubtful: variables that are carried as ordinary ones but may be tables.
        full_names: by key, the names of variables in the program that saved objects.
    """

    reader: Reader
    form: str
    tables: tuple[StoredTable, ...]
    others: Mapping[str, str | None]
    gaps: tuple[Gap, ...] = ()
    doubtful: tuple[Gap, ...] = ()
    full_names: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def step(self) -> int | None:
        """Returns the global step, None if there is none.

        Raises:
            InvalidInput: the variable of that name is not one integer.
        """
        for name, variable in self.others.items():
            if variable == GLOBAL_STEP:
                tensor = self.reader.tensors[name]
                if tensor.shape or not tensor.dtype.is_integer or tensor.sliced:
                    raise errors.InvalidInput(f"{name!r} must be one integer, got {tensor}.")
                return int(self.reader.value(name))
        return None


@dataclasses.dataclass(frozen=True)
class WriterHosts:
    """The hosts over which the writer of a checkpoint spread its tables.

    Attributes:
        strategy: "div" or "mod".
        note: an assumption to tell the user, or None.
    """

    count: int = 1
    strategy: str = "div"
    note: str | None = None

    def layout(self, rows: int) -> RowLayout:
        """Returns the order in which the rows of a table are stored."""
        return RowLayout(rows, self.count, self.strategy)


class Target(abc.ABC):
    """A checkpoint to write: the places of tables and variables in it.

    Attributes:
        form: "names" or "object".
        basename: the name of its files without the step.
        needs_step: whether it must have a global step.
    """

    form: ClassVar[str]
    basename: ClassVar[str]
    needs_step: ClassVar[bool] = False

    @abc.abstractmethod
    def table(self, table: StoredTable, layout: RowLayout) -> Iterator[TensorMove | Gap]:
        """Yields the moves of the parts of a table.

        Args:
            layout: the order of the rows in the old checkpoint.

        Raises:
            InvalidInput: the options do not determine a place or a value.
        """

    @abc.abstractmethod
    def variable(
        self, tensor: StoredTensor, name: str | None, full_name: str | None
    ) -> Iterator[TensorMove | Gap]:
        """Yields the move of a variable outside of tables; nothing if it is not to be carried.

        Args:
            name: its legacy name, None if it is unknown.
            full_name: its name in the program that saved it by object, or None.
        """

    def unchanged(self, targets: set[str]) -> Iterator[TensorMove]:
        """Yields the tensors that the checkpoint has besides `targets`."""
        yield from ()

    @abc.abstractmethod
    def finish(self, writer: Writer, moves: Sequence[TensorMove], step: int | None) -> None:
        """Writes what no move makes: the step, and the object graph."""


class Format(abc.ABC):
    """A format of checkpoints.

    Attributes:
        form: "names" or "object".
        converts_to: the form to which its checkpoints are converted by default.
    """

    form: ClassVar[str]
    converts_to: ClassVar[str]

    def read(self, reader: Reader, options: ConversionOptions, *, strict: bool = True) -> Contents:
        """Returns what a checkpoint of this format holds.

        Args:
            strict: whether the checkpoint must have tables whose optimizers are certain.

        Raises:
            InvalidInput: the options do not fit the checkpoint.
        """
        contents = self._read(reader, options, strict)
        if strict and not contents.tables and not contents.gaps:
            names = [name for name, _ in contents.doubtful]
            raise errors.InvalidInput(
                f"{reader.prefix}: no table was found. Give the spec, or each table with "
                f"--table NAME=VARIABLE{f'; these may be tables: {names}' if names else ''}."
            )
        return contents

    @abc.abstractmethod
    def _read(self, reader: Reader, options: ConversionOptions, strict: bool) -> Contents:
        """Returns the contents, tables or not."""

    @abc.abstractmethod
    def writer_hosts(self, contents: Contents, options: ConversionOptions) -> WriterHosts:
        """Returns how the writer of a checkpoint spread its tables over hosts.

        Raises:
            InvalidInput: that is not clear, or not what the options say.
        """

    @abc.abstractmethod
    def target(
        self, old: Contents, options: ConversionOptions, strategy: str, like: Reader | None
    ) -> Target:
        """Returns a new checkpoint of this format.

        Args:
            strategy: "div" or "mod", as the old checkpoint has it.
            like: a checkpoint with the names, or the objects, of the new one.

        Raises:
            InvalidInput: the options, or `like`, do not fit the format.
        """


def known_tables(options: ConversionOptions) -> list[KnownTable]:
    """Returns the tables of the spec; none without a spec.

    Raises:
        InvalidInput: the options name a table that the spec does not have.
    """
    known = [] if options.spec is None else variable_names.tables_of_spec(options.spec)
    unknown = set(options.tables) - {table.name for table in known}
    if known and unknown:
        raise errors.InvalidInput(
            f"The spec has no table {sorted(unknown)}; its tables are "
            f"{[table.name for table in known]}."
        )
    return known


def known_kind(table: KnownTable, options: ConversionOptions) -> str | None:
    """Returns the optimizer of a table as the spec or the user says it; None if neither does."""
    if table.kind is not None or options.optimizer is None:
        return table.kind
    return variable_names.optimizer_kind(options.optimizer)


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


def row_moves(
    table: StoredTable,
    places: Mapping[str, tuple[str, Path | None]],
    old_layout: RowLayout,
    new_layout: RowLayout,
) -> Iterator[RowMove]:
    """Yields the moves of the parts of a table; slots that it lacks are filled.

    Args:
        places: for every part the name of the new tensor, and the path of its object.

    Raises:
        InvalidInput: the initial value of a slot that is missing is unknown.
    """
    name = table.known.name
    for part, source in table.parts.items():
        if source is None and part not in table.known.slot_values:
            raise errors.InvalidInput(
                f"Table {name!r} lacks the slot {part!r}; only a spec tells its initial value. "
                "Give the spec."
            )
        target, path = places[part]
        yield RowMove(
            target=target,
            source=source,
            description=f"table {name!r}, {part}",
            path=path,
            shape=table.parameters.shape,
            old_layout=old_layout,
            new_layout=new_layout,
            fill=0.0 if source is not None else table.known.slot_values[part],
        )


def variable_move(tensor: StoredTensor, target: str, path: Path | None = None) -> CopyMove:
    """Returns the move of a variable outside of tables."""
    return CopyMove(
        target=target, source=tensor, description="variable", shape=tensor.shape, path=path
    )
