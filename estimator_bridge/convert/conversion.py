"""Converts checkpoints between legacy estimators and TF2, in little memory."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.convert import object_graph, plan
from estimator_bridge.convert.bundle import CHUNK, Extents, Reader, Tensor, Writer
from estimator_bridge.convert.contents import GLOBAL_STEP, NAMES, SAVE_COUNTER, Options
from estimator_bridge.convert.layout import Layout
from estimator_bridge.convert.plan import Move, Plan

Progress = Callable[[str, int, int], None]
"""Called with what is being done, and how many of how many bytes are done."""


def convert(
    old: str,
    new: str,
    *,
    spec: Any = None,
    to: str | None = None,
    optimizer: str | None = None,
    tables: Mapping[str, str] | None = None,
    from_partition: str | None = None,
    from_hosts: int | None = None,
    to_partition: str | None = None,
    to_hosts: int = 1,
    slots: str = "tpu",
    like: str | None = None,
    scope: str | None = None,
    root: str | None = None,
    rename: Mapping[str, str] | None = None,
    allow: Sequence[str] = (),
    global_step: int | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Plan:
    """Converts a checkpoint, and compares the result with it.

    The two forms: "names", which legacy estimators write, and "object", which
    `tf.train.Checkpoint(embedding=engine)` writes, ours as stock's TPUEmbedding. In an object
    checkpoint variables other than tables are below `variables`, by their legacy names, but for
    `global_step`; or all is where another object checkpoint has it (`like`), as that of a Keras
    model, whose optimizer may have the slots.

    The new checkpoint is written beside its place and renamed when it is whole.

    Args:
        old: the path of a checkpoint, or a directory, of which the latest is taken.
        new: the directory to make; an empty one may be there.
        spec: the program's `EmbeddingConfigSpec`; without it tables are what `tables` says, or
            what the checkpoint shows.
        to: the form of the new checkpoint; None is the other form.
        optimizer: of all tables, when there is no spec; None finds it by the slots.
        tables: the variable of each table in the name-based checkpoint.
        from_partition, from_hosts: how the writer of a name-based checkpoint spread tables over
            hosts; None takes the spec's "div" or "mod", and the hosts from the stored slices.
        to_partition, to_hosts: the same for a new name-based checkpoint.
        slots: "tpu" or "cpu": where the reader of a new name-based checkpoint runs.
        like: a checkpoint of the program that is to read the new one. By name it says how tables
            and variables are named; by object where each of them is. Of the latter the new one
            has all objects: those that the old one lacks stay as they are there.
        scope: the scope of column variables in a new name-based checkpoint.
        root: the object of the tables, as in "model/embedding"; None finds it in an old
            checkpoint, and is "embedding" in a new one.
        rename: new names of variables, by old names or keys; with a `like` of objects, paths.
        allow: names, or patterns of them, that may be without a counterpart.
        global_step: overrides the checkpoint's.
        dry_run: whether to make the plan only.

    Returns:
        The plan, whose `lines` are the map.

    Raises:
        UnreadableCheckpoint: a file of the old one is missing or damaged.
        Unmatched: something has no counterpart.
        InvalidInput: the options do not fit the checkpoint, or `new` exists.
        CannotWrite: the new one cannot be written.
    """
    options = Options(
        spec=spec,
        to=to,
        optimizer=optimizer,
        tables=dict(tables or {}),
        from_partition=from_partition,
        from_hosts=from_hosts,
        to_partition=to_partition,
        to_hosts=to_hosts,
        slots=slots,
        like=None if like is None else find(like),
        scope=scope,
        root=root,
        rename=dict(rename or {}),
        allow=tuple(allow),
        global_step=global_step,
    )
    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(Reader(find(old)))
        template = None if options.like is None else stack.enter_context(Reader(options.like))
        made = plan.make(reader, options, template)
        if not dry_run:
            sources = _Sources(reader, template)
            _convert(sources, new, made, progress or (lambda *_: None))
    return made


class _Sources(NamedTuple):
    """The checkpoints that a new one is made of."""

    old: Reader
    like: Reader | None

    def of(self, move: Move) -> Reader:
        """Returns that which holds the source of a tensor."""
        if move.kept:
            assert self.like is not None
            return self.like
        return self.old

    def tensor(self, move: Move) -> Tensor:
        """Returns the source of a tensor that has one."""
        assert move.source is not None
        return self.of(move).tensors[move.source]


def find(path: str) -> str:
    """Returns the path of a checkpoint: the given one, or the latest of a directory.

    Raises:
        UnreadableCheckpoint: there is none.
    """
    path = os.fspath(path)
    if os.path.isdir(path):
        try:
            latest = tf.train.latest_checkpoint(path)
        except ValueError:  # the file is empty, or no text
            latest = None
        if latest is None:
            raise errors.UnreadableCheckpoint(
                f"{path}: the directory has no `checkpoint` file that names a checkpoint. Give "
                "the path of one, without .index."
            )
        return str(latest)
    return path.removesuffix(".index")


def _convert(sources: _Sources, new: str, made: Plan, progress: Progress) -> None:
    new = os.path.abspath(new)
    if os.path.exists(new) and (not os.path.isdir(new) or os.listdir(new)):
        raise errors.InvalidInput(f"{new} exists. Give a directory that does not, or is empty.")
    name = f"{'model.ckpt' if made.to == NAMES else 'ckpt'}-{made.step or 0}"
    partial = _make_partial(new)
    try:
        prefix = os.path.join(partial, name)
        _verify(sources, made, progress)
        _write(sources, prefix, made, progress)
        _compare(sources, prefix, made, progress)
        _publish(partial, new, name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _make_partial(new: str) -> str:
    """Makes the directory to write into; hidden, and of no other process that lives or died."""
    parent, name = os.path.split(new)
    for number in itertools.count():
        # In a container every process may have the number of the one that was killed before it.
        partial = os.path.join(parent, f".{name}.part-{os.getpid()}" + f"-{number}" * (number > 0))
        try:
            os.makedirs(partial)
            return partial
        except FileExistsError:
            continue
        except OSError as error:
            raise errors.CannotWrite(f"{partial}: {error.strerror}.") from error
    raise AssertionError("there is no end of numbers")


def _verify(sources: _Sources, made: Plan, progress: Progress) -> None:
    moves = [move for move in made.moves if move.source is not None]
    total, done = sum(sources.tensor(move).size for move in moves), 0
    for move in moves:
        progress("checking", done, total)
        tensor = sources.tensor(move)
        sources.of(move).verify(tensor)
        done += tensor.size
    progress("checking", done, total)


def _write(sources: _Sources, prefix: str, made: Plan, progress: Progress) -> None:
    total, done = _size(sources, made), 0
    writer = Writer(prefix)

    def counted(buffers: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        nonlocal done
        for number, buffer in buffers:
            yield number, buffer
            done += len(buffer)
            progress("writing", done, total)

    try:
        for move in made.moves:
            if move.placed is not None:
                sizes = _part_sizes(move.placed, move.shape)
                rows = counted(_rows(sources.old, move, move.placed))
                sliced = move.placed.parts > 1
                writer.tensor(move.target, move.dtype, move.shape, sizes, rows, sliced=sliced)
                continue
            tensor, reader = sources.tensor(move), sources.of(move)
            writer.tensor(
                move.target,
                tensor.dtype,
                tensor.shape,
                {piece.extents: piece.size for piece in tensor.pieces},
                counted(
                    (number, data)
                    for number, piece in enumerate(tensor.pieces)
                    for data in reader.raw(piece)
                ),
                sliced=tensor.sliced,
                # Of strings it is not that of the bytes.
                crcs=[piece.crc for piece in tensor.pieces],
            )
        _write_rest(writer, made)
        writer.finish()
    finally:
        writer.abandon()


def _write_rest(writer: Writer, made: Plan) -> None:
    """Writes what the old checkpoint need not have: the step and the object graph."""
    written = {move.target for move in made.moves}
    if made.to == NAMES:
        if GLOBAL_STEP not in written and made.step is not None:
            writer.value(GLOBAL_STEP, np.int64(made.step))
        return
    if made.graph is not None:
        writer.string(object_graph.KEY, made.graph)
        return
    paths = {move.path: move.source for move in made.moves if move.path is not None}
    for path, value in (((GLOBAL_STEP,), made.step), ((SAVE_COUNTER,), 1)):
        if path not in paths and value is not None:
            paths[path] = path[0]
            writer.value(object_graph.key_of(path), np.int64(value))
    names = {path: name for path, name in paths.items() if name is not None}
    writer.string(object_graph.KEY, object_graph.build(paths, names, made.root))


def _part_sizes(layout: Layout, shape: tuple[int, ...]) -> dict[Extents, int]:
    """Returns the bytes of each slice of a table: of what each host holds."""
    sizes, first = {}, 0
    for rows in layout.part_rows:
        extents = ((first, rows), *((0, length) for length in shape[1:]))
        sizes[extents] = 4 * rows * math.prod(shape[1:])
        first += rows
    return sizes


def _rows(reader: Reader, move: Move, placed: Layout) -> Iterator[tuple[int, Any]]:
    """Yields the rows of a table as bytes, with the number of the slice where they come next.

    The ids are gone through once, so that both files are, whatever the order of their rows.
    """
    firsts = np.cumsum([0, *placed.part_rows])
    for ids in _chunks(move):
        values = _values(reader, move, ids)
        part = np.searchsorted(firsts, placed.stored(ids), "right") - 1
        for number in np.unique(part).tolist():
            yield number, values[part == number].tobytes()


def _values(reader: Reader, move: Move, ids: Any) -> Any:
    """Returns rows of a table of the old checkpoint, [n, dim]."""
    if move.source is None:
        return np.full([len(ids), *move.shape[1:]], move.fill, np.float32)
    assert move.stored is not None
    return reader.rows(reader.tensors[move.source], move.stored.stored(ids))


def _compare(sources: _Sources, prefix: str, made: Plan, progress: Progress) -> None:
    """Reads the new checkpoint and holds it against the old one."""
    total, done = _size(sources, made), 0
    with Reader(prefix) as result:
        for move in made.moves:
            progress("comparing", done, total)
            tensor = result.tensors[move.target]
            if move.placed is None:
                old, reader = sources.tensor(move), sources.of(move)
                same = [_described(piece) for piece in tensor.pieces] == [
                    _described(piece) for piece in old.pieces
                ] and all(
                    a == b
                    for new_piece, old_piece in zip(tensor.pieces, old.pieces, strict=True)
                    for a, b in zip(result.raw(new_piece), reader.raw(old_piece), strict=True)
                )
            else:
                same = all(_same_rows(sources.old, result, move, ids) for ids in _chunks(move))
            if not same or tensor.dtype != move.dtype:
                raise errors.CannotWrite(
                    f"{prefix}: {move.target!r} does not hold what was written. Is the disk sound?"
                )
            done += tensor.size
        progress("comparing", done, total)
    if {name for name, _ in tf.train.list_variables(prefix)} != set(result.tensors):
        raise errors.CannotWrite(f"{prefix}: TensorFlow does not see all that was written.")


def _same_rows(reader: Reader, result: Reader, move: Move, ids: Any) -> bool:
    # The maps were used in one direction to write; here they must lead back as well.
    for layout in (move.stored, move.placed):
        assert layout is not None
        if not np.array_equal(layout.ids(layout.stored(ids)), ids):
            return False
    assert move.placed is not None
    new = result.rows(result.tensors[move.target], move.placed.stored(ids))
    return bool(_values(reader, move, ids).tobytes() == new.tobytes())  # a NaN equals itself


def _chunks(move: Move) -> Iterator[Any]:
    """Yields all ids of a table, [n] int64, in their order."""
    step = max(1, CHUNK // max(1, 4 * math.prod(move.shape[1:])))
    for first in range(0, move.shape[0], step):
        yield np.arange(first, min(move.shape[0], first + step))


def _described(piece: Any) -> tuple[Extents, int, int]:
    return piece.extents, piece.size, piece.crc


def _size(sources: _Sources, made: Plan) -> int:
    """Returns the bytes to write."""
    return sum(
        4 * math.prod(move.shape) if move.source is None else sources.tensor(move).size
        for move in made.moves
    )


def _publish(partial: str, new: str, name: str) -> None:
    state = os.path.join(partial, "checkpoint")
    try:
        with open(state, "w") as file:
            file.write(f'model_checkpoint_path: "{name}"\nall_model_checkpoint_paths: "{name}"\n')
            file.flush()
            os.fsync(file.fileno())
        os.rename(partial, new)
        parent = os.open(os.path.dirname(new), os.O_RDONLY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)
    except OSError as error:
        raise errors.CannotWrite(f"{new}: {error.strerror}.") from error
