"""Converts checkpoints between legacy estimators, TF2 and PyTorch, with little memory."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import itertools
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import Reader, StoredTensor, bundle
from estimator_bridge.convert.formats import FORMATS, format_of, open_checkpoint
from estimator_bridge.convert.formats import checkpoint_format as common
from estimator_bridge.convert.formats.checkpoint_format import CheckpointTarget, Contents, Gap
from estimator_bridge.convert.moves import TensorMove
from estimator_bridge.convert.options import ConversionOptions
from estimator_bridge.progress_line import Phase, Progress, no_progress
from tf2_engine import plain_text
from tf2_engine.types import Object


@dataclasses.dataclass(frozen=True)
class ConversionPlan:
    """A conversion: a move for each tensor of the new checkpoint, tables first."""

    target: CheckpointTarget
    moves: tuple[TensorMove, ...]
    skipped: tuple[Gap, ...]  # tensors that the user allowed to have no counterpart
    step: int | None
    notes: tuple[str, ...] = ()  # assumptions, one line each

    @property
    def size(self) -> int:
        return sum(move.size for move in self.moves)

    def lines(self) -> list[str]:
        return [
            *(str(move) for move in self.moves),
            *(f"left out: {name} ({reason})" for name, reason in self.skipped),
            *(f"note: {note}." for note in self.notes),
        ]


def convert(
    old: str,
    new: str,
    *,
    spec: Object = None,
    to: str | None = None,
    from_form: str | None = None,
    optimizer: str | None = None,
    tables: Mapping[str, str] | None = None,
    from_partition: str | None = None,
    from_hosts: int | None = None,
    to_partition: str | None = None,
    to_hosts: int = 1,
    to_cores: int = 1,
    to_sparse_cores: int = 4,
    samples: Mapping[str, int] | None = None,
    slots: str = "tpu",
    like: str | None = None,
    scope: str | None = None,
    root: str | None = None,
    rename: Mapping[str, str] | None = None,
    allow: Sequence[str] = (),
    no_tables: bool = False,
    global_step: int | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ConversionPlan:
    """Converts a checkpoint, and compares the new checkpoint with the old one.

    The forms are:

    * "names", which legacy estimators write;
    * "object", which `tf.train.Checkpoint(embedding=engine)` writes, with the engine or stock's
      TPUEmbedding;
    * "sparsecore", which `tf.train.Checkpoint` writes with stock's TPUEmbeddingV2;
    * "torch", safetensors files and a state dict of PyTorch with the keys of TorchRec.

    In an object checkpoint, `global_step` is below the root, and variables outside of tables are
    below `variables`, under their legacy names. Conversions between object forms keep all paths.
    The new checkpoint gets its final name when it is complete.

    Args:
        old: a checkpoint, or a directory whose latest checkpoint is converted.
        new: the directory to create; it may exist if it is empty.
        spec: the program's `EmbeddingConfigSpec`. If it is None, the tables are those in `tables`,
            or are recognised.
        to: the new form; by default "object" if the old form is "names", else "names".
        from_form: "torch" reads files of PyTorch. None reads them only if there is no other
            checkpoint.
        optimizer: the optimizer of all tables, if there is no spec; None recognises the optimizer
            by its slots.
        tables: maps each table to its variable in the name-based checkpoint.
        from_partition, from_hosts: how the writer of a name-based checkpoint spread tables over
            hosts; None uses the spec's "div" or "mod", and the number of stored slices.
        to_partition, to_hosts: how to spread tables over hosts in a new name-based checkpoint.
        to_cores, to_sparse_cores: for a new SparseCore checkpoint, the cores of all hosts together,
            and the SparseCores of each core: 4 on v5p, 2 on v6e and TPU7x.
        samples: for a new SparseCore checkpoint without `like`. Maps the table of the
            alphabetically first feature to this feature's number of activations per core. Stock
            stores this number, and resets all slots if the program has another number.
        slots: how the reader of a new name-based checkpoint trains: on a "tpu" or "cpu", or with a
            "keras" optimizer, as the canned estimators of TensorFlow 2 do.
        like: a checkpoint of the program that will read the new one, such as a Keras model whose
            optimizer has the slots. It gives the names, or the object paths, of tables and
            variables, and the values that the old checkpoint lacks.
        scope: the scope of column variables in a new name-based checkpoint.
        root: the path of the object with the tables, such as "model/embedding". None finds the path
            in the old checkpoint, and uses "embedding" in a new one. For PyTorch, the path of the
            module with `embedding_bags`, by default the model itself.
        rename: maps old names or keys of variables to new names, or to object paths if `like` is an
            object checkpoint.
        allow: names, or patterns of names, of tensors that may lack a counterpart.
        no_tables: whether the checkpoint has no tables, only variables of the model, like a
            canned estimator's.
        global_step: replaces the checkpoint's global step.
        dry_run: plans the conversion and writes nothing.
        progress: called with the phase, the bytes done, and all bytes.

    Returns:
        The plan. `plan.lines()` says where each tensor comes from.

    Raises:
        UnreadableCheckpoint: a file of the old checkpoint is missing or damaged.
        Unmatched: a tensor has no counterpart.
        InvalidInput: the options do not fit the checkpoint, or `new` exists.
        CannotWrite: the new checkpoint cannot be written.
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
        to_cores=to_cores,
        to_sparse_cores=to_sparse_cores,
        samples=dict(samples or {}),
        slots=slots,
        scope=scope,
        root=root,
        rename=dict(rename or {}),
        allow=tuple(allow),
        no_tables=no_tables,
        global_step=global_step,
    )
    with (
        open_checkpoint(old, from_form) as reader,
        contextlib.nullcontext() if like is None else open_checkpoint(like) as like_reader,
    ):
        plan = _plan(reader, like_reader, options)
        if not dry_run:
            _write(plan, reader, new, progress or no_progress)
    return plan


def _plan(reader: Reader, like: Reader | None, options: ConversionOptions) -> ConversionPlan:
    old_format = format_of(reader)
    new_format = FORMATS[options.to or old_format.converts_to]
    old = old_format.read(reader, options)
    hosts = old_format.writer_hosts(old, options)
    new_format.check_hosts(options)
    target = new_format.target(old, options, hosts.strategy, like)
    step = old.step() if options.global_step is None else options.global_step
    moves, unplaced = common.split_gaps(_all_moves(old, hosts, target, step))
    gaps = [*old.gaps, *unplaced]
    _check_allowed([*gaps, *old.doubtful], options.allow)
    targets = Counter(move.target for move in moves)
    twice = sorted(name for name, count in targets.items() if count > 1)
    if twice:
        raise errors.InvalidInput(f"{twice} would be written twice. Change `tables` or `rename`.")
    moves.extend(target.unchanged(set(targets)))
    notes = [f"{name!r} looks like a table and is copied as it is" for name, _ in old.doubtful]
    if hosts.note is not None:
        notes.insert(0, hosts.note)
    notes += [*old.notes, *target.notes]
    return ConversionPlan(target, tuple(moves), tuple(gaps), step, tuple(notes))


def _all_moves(
    old: Contents, hosts: common.WriterHosts, target: CheckpointTarget, step: int | None
) -> common.Moves:
    tables = [table._replace(layout=table.layout or hosts.layout_of(table)) for table in old.tables]
    yield from target.tables(tables)
    if step is None and target.needs_step:
        yield Gap(common.GLOBAL_STEP, "an estimator needs it; give `global_step`")
    for name, variable in old.others.items():
        yield from target.variable(old.reader.tensors[name], variable, old.full_names.get(name))


def _check_allowed(gaps: Iterable[Gap], allow: Sequence[str]) -> None:
    refused = [
        gap for gap in gaps if not any(fnmatch.fnmatchcase(gap.name, each) for each in allow)
    ]
    if refused:
        lines = (f"  {name}: {reason}" for name, reason in refused)
        way_out = (
            "With --allow NAME, a tensor is left out, a missing slot gets its initial value, and a "
            "variable that only looks like a table is copied. Or assign a counterpart with --table "
            "or --rename."
        )
        raise errors.Unmatched(plain_text.Lines("No counterpart was found for", *lines, way_out))


def _write(plan: ConversionPlan, reader: Reader, new: str, progress: Progress) -> None:
    new = os.path.abspath(new)
    if os.path.exists(new) and (not os.path.isdir(new) or os.listdir(new)):
        raise errors.InvalidInput(
            f"{new} exists and is not empty. Give a new or an empty directory."
        )
    name = f"{plan.target.basename}-{plan.step or 0}"
    partial = _make_partial(new)
    try:
        prefix = os.path.join(partial, name)
        verified: set[StoredTensor] = set()  # tables on SparseCores share tensors
        for move in _with_progress(plan, "checking", progress):
            for source in move.sources:
                if source not in verified:
                    reader.verify(source)
                    verified.add(source)
        _stream(plan, reader, prefix, progress)
        _compare(plan, reader, prefix, progress)
        plan.target.complete(prefix, plan.lines())
        _publish(partial, new)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _make_partial(new: str) -> str:
    parent, name = os.path.split(new)
    # In a container, a process may have the same id as one that was killed earlier.
    for number in itertools.count():
        partial = os.path.join(parent, f".{name}.part-{os.getpid()}" + f"-{number}" * (number > 0))
        with bundle.naming(partial), contextlib.suppress(FileExistsError):
            os.makedirs(partial)
            break
    return partial


def _with_progress(plan: ConversionPlan, phase: str, progress: Progress) -> Iterator[TensorMove]:
    counted = Phase(progress, phase, plan.size)
    counted.add(0)
    for move in plan.moves:
        yield move
        counted.add(move.size)


def _stream(plan: ConversionPlan, reader: Reader, prefix: str, progress: Progress) -> None:
    # The size does not include the graph and the step.
    wrote = Phase(progress, "writing", plan.size).add
    writer = plan.target.writer(prefix, plan.moves, wrote)
    try:
        for move in plan.moves:
            move.write(writer, reader)
        plan.target.finish(writer, plan.moves, plan.step)
        writer.finish()
    finally:
        writer.abandon()


def _compare(plan: ConversionPlan, reader: Reader, prefix: str, progress: Progress) -> None:
    with plan.target.reader(prefix) as result:
        for move in _with_progress(plan, "comparing", progress):
            if not move.equals(result.tensors[move.target], result, reader):
                raise errors.CannotWrite(
                    f"{prefix}: {move.target!r} differs from what was written. Check the disk."
                )


def _publish(partial: str, new: str) -> None:
    with bundle.naming(new), contextlib.ExitStack() as stack:
        os.rename(partial, new)
        parent = os.open(os.path.dirname(new), os.O_RDONLY)
        stack.callback(os.close, parent)
        os.fsync(parent)
