"""Object checkpoints, which `tf.train.Checkpoint` writes: tensors by the paths of objects."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import (
    Path,
    Reader,
    RowLayout,
    StoredTensor,
    Writer,
    object_graph,
)
from estimator_bridge.checkpoint_files.object_graph import Objects
from estimator_bridge.checkpoint_files.variable_names import KnownTable
from estimator_bridge.convert import keras_slots, table_recognition
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
    row_moves,
    stored_table,
    variable_move,
)
from estimator_bridge.convert.formats.template_target import TemplateTarget
from estimator_bridge.convert.moves import TensorMove
from estimator_bridge.convert.options import ConversionOptions
from estimator_bridge.legacy.optimizer_rows import OPTIMIZERS
from tf2_engine.tables import PARAMETERS

_VARIABLES = "variables"
_SAVE_COUNTER = "save_counter"


class ObjectFormat(Format):
    """The format of `tf.train.Checkpoint`."""

    form = "object"
    converts_to = "names"

    def _read(self, reader: Reader, options: ConversionOptions, strict: bool) -> Contents:
        objects = object_graph.read_from(reader)
        assert objects is not None
        tables: list[StoredTable] = []
        gaps: list[Gap] = []
        if objects.embeddings or strict:
            children = objects.children(_embedding(objects, options.root))
            for table in known_tables(options) or _tables_among(children):
                if table.name not in children:
                    reason = f"there is no such table among {sorted(children)}"
                    gaps.append(Gap(table.name, reason))
                    continue
                kind, names = _parts(table, objects, children, options, strict)
                stored, missing = stored_table(reader, table, kind, names)
                tables.append(stored)
                gaps.extend(missing)
        parts = {part.name for table in tables for part in table.parts.values() if part}
        ignored = {*parts, object_graph.KEY, object_graph.key_of((_SAVE_COUNTER,))}
        keys = [key for key in reader.tensors if key not in ignored]
        others = _legacy_names(keys, objects, options.rename)
        return Contents(reader, self.form, tuple(tables), others, tuple(gaps), (), objects.names)

    def writer_hosts(self, contents: Contents, options: ConversionOptions) -> WriterHosts:
        if options.from_partition == "mod" or options.from_hosts:
            raise errors.InvalidInput(
                "`from_partition` and `from_hosts` are for name-based checkpoints; in an object "
                "checkpoint rows are in the order of the ids."
            )
        return WriterHosts()

    def target(
        self, old: Contents, options: ConversionOptions, strategy: str, like: Reader | None
    ) -> Target:
        if options.to_partition == "mod" or options.to_hosts != 1:
            raise errors.InvalidInput(
                "`to_partition` and `to_hosts` are for name-based checkpoints; an object "
                "checkpoint has its rows in the order of the ids, and any number of hosts reads it."
            )
        if like is None:
            if old.form == self.form:
                raise errors.InvalidInput(
                    "The old checkpoint is an object checkpoint already, which any number of hosts "
                    "reads. For other objects, give a checkpoint that has them (`like`)."
                )
            return ObjectTarget(options)
        if object_graph.KEY not in like.tensors:
            raise errors.InvalidInput(
                f"`like`: {like.prefix} is no object checkpoint, so it cannot say where things go "
                "in one. Give one that the TF2 program saved."
            )
        contents = self.read(like, ConversionOptions(spec=options.spec, root=options.root))
        return TemplateTarget(contents, options.rename)


class ObjectTarget(Target):
    """A new object checkpoint: tables below the root, variables by their legacy names."""

    form = "object"
    basename = "ckpt"

    def __init__(self, options: ConversionOptions) -> None:
        self._options = options
        self._root: Path = tuple((options.root or "embedding").split("/"))

    def table(self, table: StoredTable, layout: RowLayout) -> Iterator[TensorMove | Gap]:
        places = {}
        for part in table.parts:
            name = table.known.name
            path = (*self._root, name if part == PARAMETERS else f"{name}/{part}")
            places[part] = (object_graph.key_of(path), path)
        new_layout = RowLayout(table.parameters.shape[0])
        yield from row_moves(table, places, layout, new_layout)

    def variable(
        self, tensor: StoredTensor, name: str | None, full_name: str | None
    ) -> Iterator[TensorMove | Gap]:
        assert name is not None  # A name-based checkpoint has the names of all variables.
        if name == GLOBAL_STEP and self._options.global_step is not None:
            return
        name = self._options.rename.get(name, name)
        path = (GLOBAL_STEP,) if name == GLOBAL_STEP else (_VARIABLES, name)
        yield variable_move(tensor, object_graph.key_of(path), path)

    def finish(self, writer: Writer, moves: Sequence[TensorMove], step: int | None) -> None:
        full_names = {
            move.path: move.source.name if move.source is not None else ""
            for move in moves
            if move.path is not None
        }
        for path, value in (((GLOBAL_STEP,), step), ((_SAVE_COUNTER,), 1)):
            if path not in full_names and value is not None:
                full_names[path] = path[0]
                writer.value(object_graph.key_of(path), np.int64(value))
        graph = object_graph.build(full_names, full_names, self._root)
        writer.string(object_graph.KEY, graph)


def _embedding(objects: Objects, root: str | None) -> Path:
    """Returns the path of the TPUEmbedding, or of that one which the root names."""
    paths = {"/".join(path): path for path in objects.embeddings}
    if root is None and len(objects.embeddings) == 1:
        return objects.embeddings[0]
    if root not in paths:
        raise errors.InvalidInput(
            f"The checkpoint has a TPUEmbedding at {list(paths)}; `root` must name one of them, "
            f"got {root!r}."
        )
    return paths[root]


def _tables_among(children: Mapping[str, str]) -> list[KnownTable]:
    """Returns the tables among the variables of a TPUEmbedding: those that are not slots."""
    return [
        KnownTable(name)
        for name in children
        if not any(name.startswith(f"{other}/") for other in children)
    ]


def _parts(
    table: KnownTable,
    objects: Objects,
    children: Mapping[str, str],
    options: ConversionOptions,
    strict: bool,
) -> tuple[str, dict[str, str]]:
    """Returns the optimizer of a table, and the key of each part."""
    prefix = f"{table.name}/"
    slots = {
        name.removeprefix(prefix): key for name, key in children.items() if name.startswith(prefix)
    }
    kinds: Collection[str] = OPTIMIZERS
    if not slots:
        slots = keras_slots.of_table(objects, children[table.name])
        kinds = keras_slots.KINDS
    kind = known_kind(table, options) or _kind_with_slots(table.name, set(slots), kinds, strict)
    # A slot that is missing goes by the name that it would have.
    keys = {slot: slots.get(slot, f"{prefix}{slot}") for slot in OPTIMIZERS[kind].slots}
    return kind, {PARAMETERS: children[table.name], **keys}


def _kind_with_slots(table: str, slots: set[str], among: Collection[str], strict: bool) -> str:
    kinds = [kind for kind in table_recognition.kinds_with_slots(slots) if kind in among]
    if len(kinds) != 1 and (strict or not kinds):
        raise errors.InvalidInput(
            f"Table {table!r} has the slots {sorted(slots)}, as {kinds or 'no legacy optimizer'} "
            "has. Give the spec or the optimizer."
        )
    return kinds[0]


def _legacy_names(
    keys: Sequence[str], objects: Objects, rename: Mapping[str, str]
) -> dict[str, str | None]:
    """Returns the legacy name of each variable, None if it is unknown."""
    names = {
        key: path[-1]
        for path, key in objects.keys.items()
        if path[:-1] == (_VARIABLES,) or path == (GLOBAL_STEP,)
    }
    return {
        key: rename.get(key) or rename.get(key.removesuffix(object_graph.END)) or names.get(key)
        for key in keys
    }
