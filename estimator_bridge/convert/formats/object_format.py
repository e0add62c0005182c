"""Object checkpoints, which `tf.train.Checkpoint` writes: a tensor's key is its object's path."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import Reader, StoredTensor, Writer, object_graph
from estimator_bridge.checkpoint_files.object_graph import ObjectPath, Objects
from estimator_bridge.checkpoint_files.variable_names import KnownTable
from estimator_bridge.convert import table_recognition
from estimator_bridge.convert.formats import checkpoint_format as common
from estimator_bridge.convert.formats.checkpoint_format import Contents, Gap, Moves, StoredTable
from estimator_bridge.convert.moves import TensorMove
from estimator_bridge.convert.options import ConversionOptions
from estimator_bridge.settings.optimizer_rows import OPTIMIZERS
from tf2_engine.sharding import PARAMETERS

_VARIABLES = "variables"
_SAVE_COUNTER = "save_counter"


class ObjectFormat(common.Format):
    """The format of `tf.train.Checkpoint`."""

    form = "object"
    converts_to = "names"
    rows_read = "in an object checkpoint rows are in the order of the ids"
    rows_written = (
        "an object checkpoint has its rows in the order of the ids, and any number of hosts reads "
        "it"
    )

    def _read(self, reader: Reader, options: ConversionOptions, strict: bool) -> Contents:
        objects = object_graph.read_from(reader)
        assert objects is not None
        tables, gaps = common.split_gaps(_tables(reader, objects, options, strict))
        root = _embedding(objects, options.root) if tables else None
        others = other_variables(reader, objects, options, common.part_names(tables))
        return Contents(reader, self.form, tables, others, gaps, (), objects.names, root)

    def target(
        self, old: Contents, options: ConversionOptions, strategy: str, like: Reader | None
    ) -> common.CheckpointTarget:
        if like is None:
            if old.form == self.form:
                raise errors.InvalidInput(
                    "The old checkpoint is already an object checkpoint; any number of hosts can "
                    "read it. To convert it for a program with other objects, pass a checkpoint of "
                    "that program as the argument `like`."
                )
            return ObjectTarget(options, old)
        if object_graph.KEY not in like.tensors:
            raise errors.InvalidInput(
                f"`like`: {like.prefix} is not an object checkpoint, so it cannot say where "
                "tensors belong in the new one. Give a checkpoint that the TF2 program saved."
            )
        contents = self.read(like, ConversionOptions(spec=options.spec, root=options.root))
        return TemplateTarget(contents, options.rename)


class ObjectTarget(common.CheckpointTarget):
    """A new object checkpoint; variables of an old SparseCore checkpoint keep their paths."""

    basename = "ckpt"
    registers_saver = True  # whether the object of the tables is saved as a TPUEmbedding

    def __init__(self, options: ConversionOptions, old: Contents) -> None:
        self._options = options
        self._base = None if old.root is None else old
        root = tuple(options.root.split("/")) if options.root is not None else old.root
        self._root: ObjectPath = root or ("embedding",)
        if self._base is not None and options.rename:
            raise errors.InvalidInput(
                "`rename` cannot be used, because variables keep their object paths in this "
                "conversion. To move variables, pass a checkpoint with the new objects as the "
                "argument `like`."
            )

    def key(self, part: str, name: str) -> str:
        own_name = name if part == PARAMETERS else f"{name}/{part}"
        return object_graph.key_of((*self._root, own_name))

    def tables(self, tables: Sequence[StoredTable]) -> Moves:
        for table in tables:
            places = {part: self.key(part, table.known.name) for part in table.parts}
            yield from common.row_moves(table, places)

    def variable(self, tensor: StoredTensor, name: str | None, full_name: str | None) -> Moves:
        if name == common.GLOBAL_STEP and self._options.global_step is not None:
            return
        if self._base is not None:
            yield common.variable_move(tensor, tensor.name)
            return
        assert name is not None  # a name-based checkpoint has names for all variables
        name = self._options.rename.get(name, name)
        path = (common.GLOBAL_STEP,) if name == common.GLOBAL_STEP else (_VARIABLES, name)
        yield common.variable_move(tensor, object_graph.key_of(path))

    def finish(self, writer: Writer, moves: Sequence[TensorMove], step: int | None) -> None:
        sources = {move.target: move.sources for move in moves}
        full_names = {key: source[0].name if source else "" for key, source in sources.items()}
        for name, value in ((common.GLOBAL_STEP, step), (_SAVE_COUNTER, 1)):
            key = object_graph.key_of((name,))
            if key not in full_names and value is not None:
                full_names[key] = name
                writer.value(key, np.int64(value))
        writer.string(object_graph.KEY, self._graph(full_names))

    def _graph(self, full_names: Mapping[str, str]) -> bytes:
        if self._base is None:
            return object_graph.build(full_names, self._root if self.registers_saver else None)
        reader, old = self._base.reader, common.part_names(self._base.tables)
        old |= {key for key in reader.tensors if key.endswith(object_graph.LAYOUTS_KEY)}
        kept = set(reader.tensors) - old
        return object_graph.with_other_tables(
            reader.strings(reader.tensors[object_graph.KEY])[0],
            self._root,
            old,
            {key: name for key, name in full_names.items() if key not in kept},
            embedding=self.registers_saver,
        )


class TemplateTarget(common.CheckpointTarget):
    """A new checkpoint with all objects of a template."""

    basename = "ckpt"

    def __init__(self, template: Contents, rename: Mapping[str, str]) -> None:
        self._template = template
        self._rename = rename
        self._tensors = template.reader.tensors
        self._tables = {table.known.name: table for table in template.tables}
        parts = common.part_names(template.tables)
        self._others = {key: place for key, place in self._tensors.items() if key not in parts}
        self._graph = template.reader.strings(self._tensors[object_graph.KEY])[0]

    def tables(self, tables: Sequence[StoredTable]) -> Moves:
        for table in tables:
            yield from self._table(table)

    def _table(self, table: StoredTable) -> Moves:
        name, shape = table.known.name, table.shape
        parts = self._tables[name].parts if name in self._tables else {}
        places = {}
        for part, source in table.parts.items():
            place = parts.get(part)
            if place is not None and place.shape != shape:
                raise errors.InvalidInput(
                    f"Table {name!r} has the shape {list(shape)}, but {place.name!r} in "
                    f"{self._template.reader.prefix} has {list(place.shape)}. Give a `like` with "
                    "tables of the same shapes."
                )
            if source is not None and place is None:
                described = f"the table {name!r}" if part == PARAMETERS else f"a slot {part!r}"
                yield Gap(source.name, f"`like` has no place for {described}")
            elif source is not None and place is not None:
                places[part] = place.name
        yield from common.row_moves(table, places)

    def variable(self, tensor: StoredTensor, name: str | None, full_name: str | None) -> Moves:
        if name is None:
            key = self._key_of_object(tensor, full_name)
        else:
            key = self._key_of_variable(self._rename.get(name, name), tensor)
        if key is None:
            reason = (
                "`like` has no variable with this name and shape; assign one with --rename "
                "NAME=PATH"
            )
            yield Gap(tensor.name, reason)
        else:
            yield common.variable_move(tensor, key)

    def unchanged(self, targets: set[str]) -> Iterator[TensorMove]:
        for key, tensor in self._tensors.items():
            if key not in targets and key != object_graph.KEY:
                yield common.variable_move(tensor, key, "as in `like`")

    def finish(self, writer: Writer, moves: Sequence[TensorMove], step: int | None) -> None:
        writer.string(object_graph.KEY, self._graph)

    def _key_of_variable(self, name: str, tensor: StoredTensor) -> str | None:
        for key in (name, f"{name}{object_graph.END}"):
            place = self._others.get(key)
            if place is not None and _differ(place, tensor):
                template = self._template.reader.prefix
                raise errors.InvalidInput(
                    f"{tensor.name!r} is {tensor}, but {key!r} in {template} is {place}. Give a "
                    "`like` in which both are equal, or assign another variable with `rename`."
                )
            if place is not None:
                return key
        return self._key_by_name(name, tensor)

    def _key_of_object(self, tensor: StoredTensor, full_name: str | None) -> str | None:
        place = self._tensors.get(tensor.name)
        # A number in a path counts variables in a list, for instance an optimizer's. The template
        # may number its variables differently, so such a path does not identify a variable.
        counted = any(part.isdigit() for part in tensor.name.split("/"))
        if place is None or counted or _differ(place, tensor):
            return None if full_name is None else self._key_by_name(full_name, tensor)
        return tensor.name

    def _key_by_name(self, name: str, tensor: StoredTensor) -> str | None:
        full_names = self._template.full_names
        named = {key: place for key, place in self._others.items() if full_names.get(key) == name}
        keys = [key for key, place in named.items() if not _differ(place, tensor)]
        return keys[0] if len(keys) == 1 else None


def other_variables(
    reader: Reader, objects: Objects, options: ConversionOptions, parts: set[str]
) -> dict[str, str | None]:
    ignored = {object_graph.KEY, object_graph.key_of((_SAVE_COUNTER,)), *parts}
    names = {
        key: path[-1]
        for path, key in objects.keys.items()
        if path[:-1] == (_VARIABLES,) or path == (common.GLOBAL_STEP,)
    }
    new = options.rename
    return {
        key: new.get(key) or new.get(key.removesuffix(object_graph.END)) or names.get(key)
        for key in reader.tensors
        if key not in ignored
    }


def kind_with_slots(table: str, slots: set[str], among: Collection[str], strict: bool) -> str:
    """Finds the optimizer with these slots.

    Raises:
        InvalidInput: there is none, or there are several and `strict` is set.
    """
    kinds = [kind for kind in among if set(OPTIMIZERS[kind].slots) == slots]
    if len(kinds) != 1 and (strict or not kinds):
        raise errors.InvalidInput(
            f"Table {table!r} has the slots {sorted(slots)}, which fit "
            f"{kinds or 'no legacy optimizer'}. Give the spec or the optimizer."
        )
    return kinds[0]


def _differ(place: StoredTensor, tensor: StoredTensor) -> bool:
    return (place.shape, place.dtype) != (tensor.shape, tensor.dtype)


def _tables(
    reader: Reader, objects: Objects, options: ConversionOptions, strict: bool
) -> Iterator[StoredTable | Gap]:
    if not objects.embeddings and not strict:
        return
    children = objects.children(_embedding(objects, options.root))
    # Without a spec, tables are the variables of a TPUEmbedding that are not slots of others.
    of_others = {name for name in children for other in children if name.startswith(f"{other}/")}
    others = [KnownTable(name) for name in children if name not in of_others]
    for table in common.known_tables(options) or others:
        if table.name not in children:
            yield Gap(table.name, f"there is no such table among {sorted(children)}")
            continue
        slots, kinds = _slots(table.name, objects, children)
        kind = common.known_kind(table, options)
        kind = kind or kind_with_slots(table.name, set(slots), kinds, strict)
        # A missing slot gets its usual name.
        keys = {slot: slots.get(slot, f"{table.name}/{slot}") for slot in OPTIMIZERS[kind].slots}
        names = {PARAMETERS: children[table.name], **keys}
        yield from common.stored_table(reader, table, kind, names)


def _embedding(objects: Objects, root: str | None) -> ObjectPath:
    paths = {"/".join(path): path for path in objects.embeddings}
    if root is None and len(objects.embeddings) == 1:
        return objects.embeddings[0]
    if root not in paths:
        raise errors.InvalidInput(
            f"The checkpoint has a TPUEmbedding at {list(paths)}; `root` must name one of them, "
            f"got {root!r}."
        )
    return paths[root]


def _slots(
    table: str, objects: Objects, children: Mapping[str, str]
) -> tuple[dict[str, str], Collection[str]]:
    prefix = f"{table}/"
    slots = {name[len(prefix) :]: key for name, key in children.items() if name.startswith(prefix)}
    if slots:
        return slots, OPTIMIZERS
    return table_recognition.keras_slots(objects, children[table]), table_recognition.KERAS_KINDS
