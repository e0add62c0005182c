"""SparseCore checkpoints, which `tf.train.Checkpoint` writes with stock's TPUEmbeddingV2.

Tables are stored in stacks, whose layout depends on the number of cores and of SparseCores, but not
on the number of hosts or the kind of TPU. When TensorFlow restores another layout, tables keep
their values, but slots are silently reset.

Reference: tpu_embedding_v3.py and tpu_embedding_v3_checkpoint_adapter.py of TensorFlow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import CHUNK, ObjectPath, Reader, StoredTensor, Writer
from estimator_bridge.checkpoint_files import object_graph as graph
from estimator_bridge.checkpoint_files.bundle_protos import FLOAT32, STRING
from estimator_bridge.checkpoint_files.object_graph import Objects
from estimator_bridge.checkpoint_files.variable_names import KnownTable
from estimator_bridge.convert.formats import checkpoint_format as common
from estimator_bridge.convert.formats import object_format
from estimator_bridge.convert.formats.checkpoint_format import Contents, Gap, Moves, StoredTable
from estimator_bridge.convert.moves import StackedPart, StackMove, TensorMove, chunks
from estimator_bridge.convert.options import ConversionOptions
from estimator_bridge.settings.optimizer_rows import ON_SPARSE_CORES, OPTIMIZERS
from tf2_engine import sparsecore_layout
from tf2_engine.errors import InvalidSpec
from tf2_engine.sharding import PARAMETERS
from tf2_engine.sparsecore_layout import TableLayout, stacks_of

_NO_SAMPLES = (
    "the layouts state 0 activations for the first feature. If the program has another number, "
    "TPUEmbeddingV2 silently resets all slots; restore after its `build()`, or give a checkpoint "
    "of the program (`like`), or `samples`"
)
_NO_SPEC = (
    "tables with the same optimizer are assumed to have the same settings and to share stacks, and "
    "the padding of slots is assumed to have the optimizer's usual initial value. A spec, or "
    "`like`, states both"
)


class SparseCoreFormat(common.Format):
    """The format of stock's TPUEmbeddingV2."""

    form = "sparsecore"
    converts_to = "names"
    partitions = (None,)
    rows_read = "a SparseCore checkpoint states where its rows are"
    rows_written = (
        "rows on SparseCores do not depend on hosts. Give the cores of all hosts together "
        "(`to_cores`)"
    )

    def _read(self, reader: Reader, options: ConversionOptions, strict: bool) -> Contents:
        objects = graph.read_from(reader)
        assert objects is not None
        root, key = _root(objects, options.root)
        layouts = _layouts(reader, key)
        tables, gaps = common.split_gaps(_tables(reader, objects, layouts, options, root))
        known = {table.known.name for table in tables}
        gaps += [
            Gap(name, "it is in a stack, but the spec does not have it")
            for name in sorted(layouts.keys() - known)
        ]
        others = object_format.other_variables(
            reader, objects, options, {key, *common.part_names(tables)}
        )
        return Contents(
            reader, self.form, tables, others, gaps, (), objects.names, root, _notes(reader, tables)
        )

    def target(
        self, old: Contents, options: ConversionOptions, strategy: str, like: Reader | None
    ) -> common.CheckpointTarget:
        if like is None:
            return SparseCoreTarget(options, old)
        if not is_sparse_core(like):
            raise errors.InvalidInput(
                f"`like`: {like.prefix} is not a checkpoint for SparseCores. Give one that "
                "TPUEmbeddingV2 saved, or set `to_cores` and `to_sparse_cores`."
            )
        template = self.read(like, ConversionOptions(spec=options.spec, root=options.root))
        return SparseCoreTemplateTarget(template, options.rename)


class SparseCoreTarget(object_format.ObjectTarget):
    """A new SparseCore checkpoint, with the stacks and their layouts below the root."""

    registers_saver = False

    def __init__(self, options: ConversionOptions, old: Contents) -> None:
        super().__init__(options, old)
        self._layouts: dict[str, TableLayout] = {}
        self._layouts_key = graph.key_of((*self._root, *graph.LAYOUTS_PATH))

    def tables(self, tables: Sequence[StoredTable]) -> Moves:
        refused = [gap for table in tables for gap in _unknown_optimizer(table)]
        yield from refused
        if not refused:
            self._layouts = self._new_layouts(tables)
            by_name = {table.known.name: table for table in tables}
            for name, layouts in stacks_of(self._layouts.values()).items():
                of_stack = [by_name[layout.table] for layout in layouts]
                places = {part: self.key(part, name) for part in of_stack[0].parts}
                yield from _stack_moves(name, of_stack, layouts, places)

    def finish(self, writer: Writer, moves: Sequence[TensorMove], step: int | None) -> None:
        writer.string(self._layouts_key, sparsecore_layout.serialized(self._layouts.values()))
        super().finish(writer, moves, step)

    def _graph(self, full_names: Mapping[str, str]) -> bytes:
        return super()._graph({**full_names, self._layouts_key: ""})

    def _new_layouts(self, tables: Sequence[StoredTable]) -> dict[str, TableLayout]:
        samples = self._options.samples
        unknown = set(samples) - {table.known.name for table in tables}
        if unknown:
            raise errors.InvalidInput(
                f"`samples`: there is no table {unknown.pop()!r} among "
                f"{[table.known.name for table in tables]}."
            )
        self.notes = [
            *([] if samples else [_NO_SAMPLES]),
            *([_NO_SPEC] if any(table.known.group is None for table in tables) else []),
        ]
        stackable = [
            sparsecore_layout.StackableTable(
                table.known.name,
                *table.shape,
                group=table.known.group or table.kind,
                samples=samples.get(table.known.name, 0),
                features=int(table.known.name in samples),
            )
            for table in tables
        ]
        sparse_cores = sparsecore_layout.SparseCores(
            self._options.to_cores, self._options.to_sparse_cores
        )
        return sparsecore_layout.table_layouts(stackable, sparse_cores)


class SparseCoreTemplateTarget(object_format.TemplateTarget):
    """A SparseCore checkpoint with the layouts and objects of a template."""

    def tables(self, tables: Sequence[StoredTable]) -> Moves:
        by_name = {table.known.name: table for table in tables}
        for name in sorted(by_name.keys() - self._tables.keys()):
            yield Gap(by_name[name].parameters.name, f"`like` has no place for the table {name!r}")
        layouts = [table.layout for table in self._tables.values()]
        stacks = stacks_of(each for each in layouts if isinstance(each, TableLayout))
        for name, of_stack in stacks.items():
            self._check(name, of_stack, by_name)
            places = self._tables[of_stack[0].table].parts
            keys = {part: place.name for part, place in places.items() if place is not None}
            old = [by_name[layout.table] for layout in of_stack]
            yield from _stack_moves(name, old, of_stack, keys)

    def _check(
        self, stack: str, layouts: Sequence[TableLayout], tables: Mapping[str, StoredTable]
    ) -> None:
        template = self._template.reader.prefix
        for layout in layouts:
            table, place = tables.get(layout.table), self._tables[layout.table]
            if table is None:
                raise errors.InvalidInput(
                    f"The stack {stack!r} of {template} holds the table {layout.table!r}, which "
                    "the old checkpoint lacks. Give a `like` with the same tables."
                )
            if (table.shape, table.kind) != ((layout.rows, layout.dim), place.kind):
                raise errors.InvalidInput(
                    f"Table {layout.table!r} has the shape {list(table.shape)} and {table.kind}, "
                    f"but in {template} it has [{layout.rows}, {layout.dim}] and {place.kind}. "
                    "Give a `like` with the same tables."
                )


def is_sparse_core(reader: Reader) -> bool:
    return any(name.endswith(graph.LAYOUTS_KEY) for name in reader.tensors)


def layouts_of(reader: Reader) -> list[bytes]:
    tensors = [
        tensor for name, tensor in reader.tensors.items() if name.endswith(graph.LAYOUTS_KEY)
    ]
    return [data for tensor in tensors if tensor.dtype == STRING for data in reader.strings(tensor)]


def num_trained_padding(reader: Reader, table: StoredTable) -> int | None:
    """Counts the padding rows that were trained because ids were not in the vocabulary."""
    layout, slots = table.layout, [slot for slot in table.slots.values() if slot is not None]
    if not isinstance(layout, TableLayout) or not slots:
        return None
    trained = np.zeros(layout.padded_rows - layout.rows, bool)
    step = max(1, CHUNK // (4 * layout.padded_dim))
    for slot in slots:
        values = [
            reader.rows(slot, layout.stored(layout.rows + places))
            for places in chunks(len(trained), step)
        ]
        padding = np.concatenate(values or [np.zeros([0, 1], np.float32)])[:, : layout.dim]
        is_accumulator = slot.name.endswith(f"accumulators{graph.END}")
        initial = padding.min(initial=np.inf) if is_accumulator else 0.0
        trained |= np.any(padding != initial, axis=1)
    return int(np.count_nonzero(trained))


def _notes(reader: Reader, tables: Sequence[StoredTable]) -> list[str]:
    counts = {table.known.name: num_trained_padding(reader, table) for table in tables}
    return [
        f"table {name!r}: {count} row(s) of its padding were trained, by ids outside of the "
        "vocabulary; no other form stores such rows"
        for name, count in counts.items()
        if count
    ]


def _root(objects: Objects, wanted: str | None) -> tuple[ObjectPath, str]:
    roots = {
        "/".join(path[:-1]): (path[:-1], key)
        for path, key in objects.keys.items()
        if path[-1:] == graph.LAYOUTS_PATH
    }
    if wanted is None and len(roots) == 1:
        return next(iter(roots.values()))
    if wanted is None or wanted not in roots:
        raise errors.InvalidInput(
            f"The checkpoint has a TPUEmbeddingV2 at {list(roots)}; `root` must name one of them, "
            f"got {wanted!r}."
        )
    return roots[wanted]


def _layouts(reader: Reader, key: str) -> dict[str, TableLayout]:
    tensor = reader.tensors[key]
    try:
        if tensor.dtype != STRING or tensor.shape:
            raise InvalidSpec(f"It is {tensor}.")
        return sparsecore_layout.parsed(reader.strings(tensor)[0])
    except InvalidSpec as error:
        raise errors.UnreadableCheckpoint(
            f"{reader.prefix}: {key!r} does not hold layouts of tables. {error} Use another "
            "checkpoint."
        ) from error


def _tables(
    reader: Reader,
    objects: Objects,
    layouts: Mapping[str, TableLayout],
    options: ConversionOptions,
    root: ObjectPath,
) -> Iterator[StoredTable | Gap]:
    children = objects.children(root)
    for known in common.known_tables(options) or [KnownTable(name) for name in layouts]:
        layout = layouts.get(known.name)
        if layout is None or layout.stack not in children:
            yield Gap(known.name, f"there is no such table among {sorted(layouts)}")
            continue
        if known.shape not in (None, (layout.rows, layout.dim)):
            raise errors.InvalidInput(
                f"Table {known.name!r}: the spec says {list(known.shape or ())}, but the "
                f"checkpoint has [{layout.rows}, {layout.dim}]. Give the checkpoint's vocabulary "
                "and dimension."
            )
        prefix = f"{layout.stack}/"
        slots = {
            name.removeprefix(prefix): reader.tensors[key]
            for name, key in children.items()
            if name.startswith(prefix)
        }
        kind = common.known_kind(known, options)
        kind = kind or object_format.kind_with_slots(
            known.name, set(slots), ON_SPARSE_CORES, strict=True
        )
        stack = reader.tensors[children[layout.stack]]
        for tensor in (stack, *slots.values()):
            _check_stack(tensor, layout)
        missing = [slot for slot in OPTIMIZERS[kind].slots if slot not in slots]
        yield from (Gap(prefix + s, f"table {known.name!r} has no such slot") for s in missing)
        of_rule = {slot: slots.get(slot) for slot in OPTIMIZERS[kind].slots}
        yield StoredTable(known, kind, stack, of_rule, layout=layout)


def _check_stack(tensor: StoredTensor, layout: TableLayout) -> None:
    if (tensor.shape, tensor.dtype) != (layout.stack_shape, FLOAT32) or not tensor.part_rows:
        raise errors.InvalidInput(
            f"Table {layout.table!r}: {tensor.name!r} is {tensor}. According to the checkpoint's "
            f"layouts it must be float32{list(layout.stack_shape)}, stored in blocks of rows."
        )


def _unknown_optimizer(table: StoredTable) -> Iterator[Gap]:
    if table.kind not in ON_SPARSE_CORES:
        names = ", ".join(kind.removesuffix("Parameters") for kind in ON_SPARSE_CORES)
        reason = f"table {table.known.name!r}: SparseCores have no {table.kind}, only {names}"
        yield Gap(table.parameters.name, reason)


def _stack_moves(
    stack: str,
    tables: Sequence[StoredTable],
    layouts: Sequence[TableLayout],
    places: Mapping[str, str],
) -> Iterator[StackMove]:
    for part, target in places.items():
        parts = tuple(
            StackedPart(table.rows(part), layout, _padding(table, part))
            for table, layout in zip(tables, layouts, strict=True)
        )
        described = f"stack {stack!r}, {part}"
        yield StackMove(target, described, layouts[0].stack_shape, parts)


def _padding(table: StoredTable, part: str) -> float:
    if part == PARAMETERS:
        return 0.0
    usual = OPTIMIZERS[table.kind].engine().slot_initial_values()
    return table.known.slot_values.get(part, usual[part])
