"""Converts checkpoints between legacy estimators and TF2, in little memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import Reader
from estimator_bridge.convert import conversion_plan, writing
from estimator_bridge.convert.conversion_plan import ConversionPlan
from estimator_bridge.convert.formats import FORMATS, format_of
from estimator_bridge.convert.options import ConversionOptions
from estimator_bridge.progress_line import Progress, no_progress
from tf2_engine.types import Object


def convert(
    old: str,
    new: str,
    *,
    spec: Object = None,
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
) -> ConversionPlan:
    """Converts a checkpoint, and compares the result with it.

    There are two forms: "names", which legacy estimators write, and "object", which
    `tf.train.Checkpoint(embedding=engine)` writes, with the engine or stock's TPUEmbedding. In an
    object checkpoint `global_step` is below the root, and the other variables outside of tables
    below `variables`, by their legacy names. With `like` every variable is where another object
    checkpoint has it, such as that of a Keras model, whose optimizer may have the slots.

    The new checkpoint is written beside its place and renamed when it is whole.

    Args:
        old: the path of a checkpoint, or a directory, of which the latest is taken.
        new: the directory to make; an empty one may be there.
        spec: the program's `EmbeddingConfigSpec`; without it the tables are those of `tables`, or
            those that the checkpoint shows.
        to: the form of the new checkpoint; None is the other form.
        optimizer: of all tables, when there is no spec; None finds it by the slots.
        tables: the variable of each table in the name-based checkpoint.
        from_partition, from_hosts: how the writer of a name-based checkpoint spread tables over
            hosts; None takes the spec's "div" or "mod", and the hosts from the stored slices.
        to_partition, to_hosts: the same for a new name-based checkpoint.
        slots: "tpu" or "cpu": where the reader of a new name-based checkpoint runs.
        like: a checkpoint of the program that is to read the new one: by name for the names of
            tables and variables, by object for their places. The new one has all objects of the
            latter; the values that the old one lacks are taken from `like`.
        scope: the scope of column variables in a new name-based checkpoint.
        root: the object of the tables, as in "model/embedding"; None finds it in an old
            checkpoint, and is "embedding" in a new one.
        rename: new names of variables, by old names or keys; with a `like` of objects, paths.
        allow: names, or patterns of them, that may be without a counterpart.
        global_step: overrides the checkpoint's.
        dry_run: whether to make the plan and write nothing.
        progress: called with the phase, and how many of how many bytes are done.

    Returns:
        The plan; its `lines()` say where each tensor comes from.

    Raises:
        UnreadableCheckpoint: a file of the old one is missing or damaged.
        Unmatched: something has no counterpart.
        InvalidInput: the options do not fit the checkpoint, or `new` exists.
        CannotWrite: the new one cannot be written.
    """
    options = ConversionOptions(
        spec=spec,
        to=to,
        optimizer=optimizer,
        tables=dict(tables or {}),
        from_partition=from_partition,
        from_hosts=from_hosts,
        to_partition=to_partition,
        to_hosts=to_hosts,
        slots=slots,
        scope=scope,
        root=root,
        rename=dict(rename or {}),
        allow=tuple(allow),
        global_step=global_step,
    )
    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(Reader(find(old)))
        like_reader = None if like is None else stack.enter_context(Reader(find(like)))
        plan = _plan(reader, like_reader, options)
        if not dry_run:
            writing.write(plan, reader, new, progress or no_progress)
    return plan


def find(path: str) -> str:
    """Returns the path of a checkpoint: the given one, or the latest of a directory.

    Raises:
        UnreadableCheckpoint: there is none.
    """
    path = os.fspath(path)
    if os.path.isdir(path):
        try:
            latest = tf.train.latest_checkpoint(path)
        except ValueError:  # the file is empty, or not a text
            latest = None
        if latest is None:
            raise errors.UnreadableCheckpoint(
                f"{path}: the directory has no `checkpoint` file that names a checkpoint. Give "
                "the path of one, without .index."
            )
        return str(latest)
    return path.removesuffix(".index")


def _plan(reader: Reader, like: Reader | None, options: ConversionOptions) -> ConversionPlan:
    old_format = format_of(reader)
    new_format = FORMATS[options.to or old_format.converts_to]
    old = old_format.read(reader, options)
    hosts = old_format.writer_hosts(old, options)
    target = new_format.target(old, options, hosts.strategy, like)
    return conversion_plan.make(old, hosts, target, options)
