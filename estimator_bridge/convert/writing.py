"""Carries out a conversion plan: streams every tensor, compares the result, then publishes it."""

from __future__ import annotations

import itertools
import os
import shutil

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import Reader, Writer
from estimator_bridge.convert.conversion_plan import ConversionPlan
from estimator_bridge.convert.moves import Buffers
from estimator_bridge.progress_line import Progress


def write(plan: ConversionPlan, reader: Reader, new: str, progress: Progress) -> None:
    """Writes a checkpoint beside its place, compares it with its sources, and renames it.

    Args:
        reader: an open checkpoint, which reads the sources.
        new: the directory to make; an empty one may exist.

    Raises:
        InvalidInput: the directory exists and is not empty.
        UnreadableCheckpoint: a source is damaged.
        CannotWrite: a file cannot be written, or does not hold what was written.
    """
    new = os.path.abspath(new)
    if os.path.exists(new) and (not os.path.isdir(new) or os.listdir(new)):
        raise errors.InvalidInput(f"{new} exists. Give a directory that does not, or is empty.")
    name = f"{plan.target.basename}-{plan.step or 0}"
    partial = _make_partial(new)
    try:
        prefix = os.path.join(partial, name)
        _verify(plan, reader, progress)
        _stream(plan, reader, prefix, progress)
        _compare(plan, reader, prefix, progress)
        _publish(partial, new, name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _make_partial(new: str) -> str:
    """Makes a hidden directory to write into, which no other process uses or has left behind."""
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
    raise AssertionError("itertools.count ended")


def _verify(plan: ConversionPlan, reader: Reader, progress: Progress) -> None:
    """Compares the checksums of all sources."""
    sources = [move.source for move in plan.moves if move.source is not None]
    total, done = sum(source.size for source in sources), 0
    for source in sources:
        progress("checking", done, total)
        reader.verify(source)
        done += source.size
    progress("checking", done, total)


def _stream(plan: ConversionPlan, reader: Reader, prefix: str, progress: Progress) -> None:
    total, done = sum(move.size for move in plan.moves), 0
    writer = Writer(prefix)

    def counted(buffers: Buffers) -> Buffers:
        nonlocal done
        for number, buffer in buffers:
            yield number, buffer
            done += len(buffer)
            progress("writing", done, total)

    try:
        for move in plan.moves:
            move.write(writer, reader, counted)
        plan.target.finish(writer, plan.moves, plan.step)
        writer.finish()
    finally:
        writer.abandon()


def _compare(plan: ConversionPlan, reader: Reader, prefix: str, progress: Progress) -> None:
    """Reads the new checkpoint and compares it with its sources."""
    total, done = sum(move.size for move in plan.moves), 0
    with Reader(prefix) as result:
        for move in plan.moves:
            progress("comparing", done, total)
            written = result.tensors[move.target]
            if not move.equals(written, result, reader):
                raise errors.CannotWrite(
                    f"{prefix}: {move.target!r} does not hold what was written. Is the disk sound?"
                )
            done += written.size
        progress("comparing", done, total)
    if {name for name, _ in tf.train.list_variables(prefix)} != set(result.tensors):
        raise errors.CannotWrite(f"{prefix}: TensorFlow does not see all that was written.")


def _publish(partial: str, new: str, name: str) -> None:
    """Writes the file `checkpoint` and renames the directory, both on the disk afterwards."""
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
