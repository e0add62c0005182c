"""What a checkpoint holds: which of its tensors are the tables of a model, and how they lie."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.convert import keras_slots, object_graph, variable_names
from estimator_bridge.convert.bundle import Reader
from estimator_bridge.convert.layout import Layout
from estimator_bridge.convert.object_graph import Objects, Path
from estimator_bridge.convert.variable_names import KnownTable
from estimator_bridge.translation.optimizer_rows import OPTIMIZERS
from tf2_engine import sharding
from tf2_engine.tables import PARAMETERS

NAMES, OBJECT = "names", "object"
GLOBAL_STEP = "global_step"
VARIABLES = "variables"
SAVE_COUNTER = "save_counter"


@dataclasses.dataclass(frozen=True)
class Options:
    """What a user says about both checkpoints; see `conversion.convert`."""

    spec: Any = None
    to: str | None = None
    optimizer: str | None = None
    tables: Mapping[str, str] = dataclasses.field(default_factory=dict)
    from_partition: str | None = None
    from_hosts: int | None = None
    to_partition: str | None = None
    to_hosts: int = 1
    slots: str = "tpu"
    like: str | None = None
    scope: str | None = None
    root: str | None = None
    rename: Mapping[str, str] = dataclasses.field(default_factory=dict)
    allow: tuple[str, ...] = ()
    global_step: int | None = None


class Found(NamedTuple):
    """A table in the old checkpoint: the tensor of each part, None for a slot it lacks."""

    known: KnownTable
    kind: str
    parts: dict[str, str | None]


class Contents:
    """What a checkpoint holds: its tables, and what else there is.

    Attributes:
        form: "names" or "object".
        tables: those of the spec, else those that can be told.
        unmatched: what tables lack, with the reason.
        notes: what was taken for granted, a line each.

    Args:
        strict: whether a checkpoint must have a table, and one be told from what it is not.
    """

    def __init__(self, reader: Reader, options: Options, *, strict: bool = True) -> None:
        self.tensors = reader.tensors
        self._strict = strict
        self.options = options
        self.unmatched: list[tuple[str, str]] = []
        self.notes: list[str] = []
        self.objects = objects_of(reader)
        self.form = NAMES if self.objects is None else OBJECT
        self.known = [] if options.spec is None else variable_names.tables_of_spec(options.spec)
        self.shapes = shapes_of(reader)
        if self.known:
            unknown = set(options.tables) - {table.name for table in self.known}
            if unknown:
                raise errors.InvalidInput(
                    f"The spec has no table {sorted(unknown)}; its tables are "
                    f"{[table.name for table in self.known]}."
                )
        self.tables = list(
            self._named_tables() if self.objects is None else self._object_tables(self.objects)
        )
        if strict and not self.tables and not self.unmatched:
            perhaps = [name for name, _ in self.doubtful()]
            raise errors.InvalidInput(
                f"{reader.prefix}: no table was found. Give the spec, or each table with "
                f"--table NAME=VARIABLE{f'; these may be tables: {perhaps}' if perhaps else ''}."
            )

    def layout(self, rows: int) -> Layout:
        """Returns how the rows of a table are stored."""
        return Layout(rows, self._hosts, self._strategy)

    def settle_layout(self) -> None:
        """Finds out how the writer spread its tables over hosts.

        Raises:
            InvalidInput: that is not clear, or not what the user says.
        """
        self._hosts, self._strategy = 1, "div"
        if self.form == OBJECT:
            if self.options.from_partition == "mod" or self.options.from_hosts:
                raise errors.InvalidInput(
                    "`from_partition` and `from_hosts` are for name-based checkpoints; in an "
                    "object checkpoint rows are in the order of the ids."
                )
            return
        counts = {}
        for table in self.tables:
            name = table.parts[PARAMETERS]
            assert name is not None
            rows = self.tensors[name].part_rows
            assert rows is not None
            if rows != sharding.shard_rows(sum(rows), len(rows)):
                raise errors.InvalidInput(
                    f"{name!r} is stored in slices of {rows} rows, which no table of a TPU is. "
                    "Restore the checkpoint in its program and save it without a partitioner."
                )
            counts[name] = (len(rows), sum(rows))
        # A table with a row in each slice may have had more hosts than that.
        exact = {count for count, rows in counts.values() if count < rows}
        least = max((count for count, _ in counts.values()), default=1)
        stored = exact.pop() if len(exact) == 1 else least
        if exact or any(count != min(rows, stored) for count, rows in counts.values()):
            raise errors.InvalidInput(
                f"The tables are spread over different hosts; (slices, rows) are {counts}. Restore "
                "the checkpoint in its program and save it without a partitioner."
            )
        self._hosts = self.options.from_hosts or stored
        # A checkpoint that another program restored and saved has no slices any more.
        if stored > 1 and any(count != min(rows, self._hosts) for count, rows in counts.values()):
            raise errors.InvalidInput(
                f"`from_hosts`={self._hosts}, but the tables are stored in slices of {stored} "
                f"hosts: {counts}."
            )
        strategy = self.options.from_partition or getattr(
            self.options.spec, "partition_strategy", None
        )
        if strategy is None and self._hosts > 1:
            raise errors.InvalidInput(
                f"The tables were written by {self._hosts} hosts, and a checkpoint does not say "
                'whether with "div" or "mod". Give the spec, or `from_partition`.'
            )
        self._strategy = strategy or "div"
        if self._strategy == "mod" and stored == 1 and self.options.from_hosts is None:
            self.notes.append(
                'partitioned by "mod", but stored without slices, so that one host is taken for '
                "the writer. If there were more, and another program saved it again, give "
                "`from_hosts`"
            )

    def others(self) -> Iterator[tuple[str, str | None]]:
        """Yields what is no part of a table: the tensor and the name of its variable, if known."""
        used = {part for table in self.tables for part in table.parts.values()}
        if self.objects is None:
            for name in self.tensors:
                if name not in used and self._of_table(name) is None:
                    yield name, name
            return
        names = {
            key: path[-1]
            for path, key in self.objects.keys.items()
            if path[:-1] == (VARIABLES,) or path == (GLOBAL_STEP,)
        }
        for key in self.tensors:
            if key not in used and key not in (
                object_graph.KEY,
                object_graph.key_of((SAVE_COUNTER,)),
            ):
                path = key.removesuffix(object_graph.END)
                renamed = self.options.rename.get(key) or self.options.rename.get(path)
                yield key, renamed or names.get(key)

    def name_of(self, key: str) -> str | None:
        """Returns what the program called a variable that is saved by object."""
        return None if self.objects is None else self.objects.names.get(key)

    def name_like(self, key: str, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
        """Returns the same, if there is such a name with the variable's shape."""
        name = self.name_of(key)
        return name if shapes.get(name or "") == self.tensors[key].shape else None

    def step(self, reader: Reader) -> int | None:
        """Returns the global step, None if there is none.

        Raises:
            InvalidInput: the checkpoint has something else of that name.
        """
        if self.options.global_step is not None:
            return self.options.global_step
        for name, variable in self.others():
            if variable == GLOBAL_STEP:
                tensor = reader.tensors[name]
                if tensor.shape or not tensor.dtype.is_integer or tensor.sliced:
                    raise errors.InvalidInput(
                        f"{name!r} must be one integer, got {tensor.dtype.name}"
                        f"{list(tensor.shape)}."
                    )
                return int(reader.value(name))
        return None

    def _named_tables(self) -> Iterator[Found]:
        variables = self.options.tables
        if not variables and not self.known:
            parts = {name: len(tensor.pieces) for name, tensor in self.tensors.items()}
            variables = variable_names.tables_of_checkpoint(self.shapes, parts)
        for table in self.known or [KnownTable(name) for name in variables]:
            variable = variables.get(table.name) or variable_names.variable_of(table, self.shapes)
            if variable is None or variable not in self.shapes:
                why = f"table {table.name!r} has no variable {self._near(table)}"
                self.unmatched.append((variable or table.name, why))
                continue
            kind = self._kind(table) or variable_names.kind_of_variable(variable, self.shapes)
            place = variable_names.made_on(kind, variable, self.shapes)
            slots = variable_names.slot_variables(kind, variable, place)
            yield self._found(table, kind, {PARAMETERS: variable, **slots})

    def _object_tables(self, objects: Objects) -> Iterator[Found]:
        if not objects.embeddings and not self._strict:
            return
        children = objects.children(self._embedding(objects))
        known = self.known or [
            KnownTable(name)
            for name in children
            if not any(name.startswith(f"{other}/") for other in children)
        ]
        for table in known:
            if table.name not in children:
                self.unmatched.append(
                    (table.name, f"there is no such table among {sorted(children)}")
                )
                continue
            slots = {
                name.removeprefix(f"{table.name}/"): key
                for name, key in children.items()
                if name.startswith(f"{table.name}/")
            }
            kinds: Container[str] = OPTIMIZERS
            if not slots:
                slots = keras_slots.of_table(objects, children[table.name])
                kinds = keras_slots.KINDS
            kind = self._kind(table) or self._kind_with(table.name, set(slots), kinds)
            names = {slot: f"{table.name}/{slot}" for slot in OPTIMIZERS[kind].slots}
            parts = {
                PARAMETERS: children[table.name],
                **{slot: slots.get(slot, name) for slot, name in names.items()},
            }
            yield self._found(table, kind, parts)

    def _found(self, table: KnownTable, kind: str, parts: dict[str, str]) -> Found:
        shape = self.tensors[parts[PARAMETERS]].shape
        blocks = self.tensors[parts[PARAMETERS]].part_rows
        if table.shape is not None and table.shape != shape:
            raise errors.InvalidInput(
                f"Table {table.name!r}: the spec says {list(table.shape)}, but "
                f"{parts[PARAMETERS]!r} is {list(shape)}. Vocabulary and dimension must be those "
                "of the checkpoint."
            )
        for name in parts.values():
            tensor = self.tensors.get(name)
            if tensor is None:
                self.unmatched.append((name, f"table {table.name!r} has no such slot"))
            elif (
                tensor.shape != shape
                or len(shape) != 2
                or min(shape) < 1
                or tensor.dtype != tf.float32
            ):
                raise errors.InvalidInput(
                    f"Table {table.name!r}: {name!r} is {tensor.dtype.name}{list(tensor.shape)}, "
                    f"but must be float32 and of the shape of the table, {list(shape)}."
                )
            elif tensor.part_rows is None or tensor.part_rows != blocks:
                raise errors.InvalidInput(
                    f"Table {table.name!r}: {name!r} is stored in slices of {tensor.part_rows} "
                    "rows, which no table of a TPU is. Restore the checkpoint in its program and "
                    "save it without a partitioner."
                )
        held = {part: name if name in self.tensors else None for part, name in parts.items()}
        return Found(table, kind, held)

    def _kind(self, table: KnownTable) -> str | None:
        if table.kind is not None:
            return table.kind
        name = self.options.optimizer
        return None if name is None else variable_names.optimizer_kind(name)

    def _kind_with(self, table: str, slots: set[str], among: Container[str]) -> str:
        kinds = [kind for kind in variable_names.kinds_with_slots(slots) if kind in among]
        if len(kinds) != 1 and (self._strict or not kinds):
            raise errors.InvalidInput(
                f"Table {table!r} has the slots {sorted(slots)}, as "
                f"{kinds or 'no legacy optimizer'} has. Give the spec or the optimizer."
            )
        return kinds[0]

    def _embedding(self, objects: Objects) -> Path:
        found = ["/".join(path) for path in objects.embeddings]
        root = self.options.root
        if root is None and len(found) == 1:
            root = found[0]
        if root not in found:
            raise errors.InvalidInput(
                f"The checkpoint has a TPUEmbedding at {found}; `root` must name one of them, got "
                f"{root!r}."
            )
        return objects.embeddings[found.index(root)]

    def _of_table(self, name: str) -> str | None:
        """Returns the table to which a tensor belongs that is no known part of any."""
        if any(name in table.parts.values() for table in self.tables):
            return None
        for table in self.tables:
            variable = table.parts[PARAMETERS]
            assert variable is not None
            if name.startswith(f"{variable}/"):
                if self.tensors[name].shape == self.tensors[variable].shape:
                    return table.known.name
        return None

    def strays(self) -> Iterator[tuple[str, str]]:
        """Yields tensors that belong to a table but are no slot of its optimizer."""
        if self.objects is not None:
            return
        for name in self.tensors:
            table = self._of_table(name)
            if table is not None:
                yield name, f"it belongs to table {table!r}, but is no slot of its optimizer"

    def doubtful(self) -> Iterator[tuple[str, str]]:
        """Yields variables that are carried as ordinary ones, but are perhaps tables."""
        if self.objects is not None:
            return
        known = {table.known.name: str(table.parts[PARAMETERS]) for table in self.tables}
        listed = self.options.spec is not None
        others = {name for name, _ in self.others()}
        for name in variable_names.may_be_tables(self.shapes, known, listed=listed):
            if name in others:
                why = "is none of the spec" if listed else "no slot or name says so for certain"
                yield name, f"it looks like a table, but {why}"

    def _near(self, table: KnownTable) -> str:
        same = sorted(n for n, shape in self.shapes.items() if shape == table.shape)[:5]
        return f"among those of its shape, {same}" if same else "of its shape"


def objects_of(reader: Reader) -> Objects | None:
    """Returns the objects of a checkpoint, None if it is name-based."""
    graph = reader.tensors.get(object_graph.KEY)
    if graph is None:
        return None
    if graph.dtype != tf.string or graph.shape:
        raise object_graph.damaged(reader.prefix)
    found = object_graph.read(reader.strings(graph)[0], reader.prefix)
    held = {path: key for path, key in found.keys.items() if key in reader.tensors}
    return found._replace(keys=held)


def shapes_of(reader: Reader) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the tensors that may be part of a table."""
    return {name: t.shape for name, t in reader.tensors.items() if t.dtype == tf.float32}
