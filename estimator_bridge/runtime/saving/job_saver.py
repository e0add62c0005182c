"""Saves and restores the variables of jobs in slices, and the state of hooks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import Reader, RowLayout, StoredTensor, object_graph
from estimator_bridge.runtime.saving import checkpoint_state
from estimator_bridge.runtime.saving.checkpoint_state import reading
from estimator_bridge.runtime.step.model_step import EstimatorJob, ModelStep
from estimator_bridge.runtime.step.table_variables import TableVariables, VariableShapes
from tf2_engine import log, sharding, tf_compat
from tf2_engine.types import Array, Object, Op, Session, Variable


class BeforeSave(tf.train.CheckpointSaverListener):
    """Calls a function with the session and the step before each checkpoint is written."""

    def __init__(self, function: Callable[[Session, int], None]) -> None:
        self._function = function

    def before_save(self, session: Session, global_step_value: int) -> None:
        self._function(session, int(global_step_value))


class SavingHook(tf.train.SessionRunHook):
    """A hook whose state is saved with each checkpoint. Such hooks start before any saver."""

    listener: tf.train.CheckpointSaverListener  # called around every checkpoint


class JobSaver(tf.train.Saver):
    """Restores and saves a job's variables.

    It differs from a plain Saver:
    * It never overwrites the checkpoint that it restored, so a killed job keeps this checkpoint.
    * Each task stores its rows of a large variable in slices, without a second copy of the table.
    * Table slots that the checkpoint lacks get their initial values.
    * Rows of a table with partition_strategy="mod" are reordered if a different number of hosts or
      servers wrote the checkpoint.
    * Error messages name the file.

    Args:
        stored: the variables in the checkpoint to restore. None if there is no checkpoint.
        in_one_piece: whether to restore each range of rows as a whole. This is needed if the
            checkpoint stores large variables in larger pieces than this Saver's slices.
    """

    def __init__(
        self,
        stored: VariableShapes | None = None,
        tables: TableVariables | None = None,
        *,
        in_one_piece: bool = False,
        **options: Object,
    ) -> None:
        self._stored = stored
        self._tables = tables or TableVariables()
        self._in_one_piece = in_one_piece
        self._saves_all = options.get("var_list") is None
        self._in_large_pieces: tf.train.Saver | None = None
        self._restored: str | None = None
        self._partial: tf.train.Saver | None = None
        self._missing: list[str] = []
        self._initialize_missing: Op = None
        self._by_mod: RowsByMod | None = None
        super().__init__(builder=tf_compat.SaverBuilderOfSlices(), **options)

    def build(self) -> None:
        if self._is_built:
            return
        others = tf.get_collection(tf.GraphKeys.SAVEABLE_OBJECTS)
        if self._saves_all:
            every = [*tf.global_variables(), *others]
            self._var_list = in_slices(every, self._tables, SLICE_BYTES)
        super().build()
        if self._tables.strategy == "mod":
            self._by_mod = RowsByMod(self._tables)
        if self._stored is None or object_graph.KEY in self._stored:
            return
        self._build_for(self._stored, others)

    def _build_for(self, stored: VariableShapes, others: Sequence[Object]) -> None:
        present = list(others)
        missing: dict[str, list[Variable]] = {}
        for variable in tf.global_variables():
            key = tf_compat.checkpoint_key(variable)
            if key not in stored and self._is_slot(variable):
                missing.setdefault(key, []).append(variable)
            else:
                present.append(variable)
        # Reading a slice means reading the whole stored piece that contains its rows.
        most_bytes = None if self._in_one_piece else SLICE_BYTES
        if self._in_one_piece:
            every = [*tf.global_variables(), *others]
            self._in_large_pieces = self._saver_of(every, most_bytes)
        if missing:
            self._missing = sorted(missing)
            self._partial = self._saver_of(present, most_bytes)
            parts = [variable for parts in missing.values() for variable in parts]
            self._initialize_missing = tf.variables_initializer(parts)

    def _saver_of(self, objects: Sequence[Object], most_bytes: int | None) -> tf.train.Saver:
        saved = in_slices(objects, self._tables, most_bytes)
        return tf.train.Saver(saved, sharded=True, builder=tf_compat.SaverBuilderOfSlices())

    def _is_slot(self, variable: Variable) -> bool:
        # Variables of unknown shape, such as cluster centers, belong to models.
        shape = tf_compat.checkpoint_shape(variable)
        return shape is not None and self._tables.is_slot(tf_compat.checkpoint_key(variable), shape)

    def restore(self, sess: Session, save_path: str) -> None:
        if not checkpoint_state.has_index(save_path):
            super().restore(sess, save_path)
        else:
            try:
                with reading(save_path), Reader(save_path) as reader:  # checks the file sizes
                    self._restore(sess, save_path, reader)
                    if self._by_mod is not None:
                        self._by_mod.put_in_order(sess, reader)
            except tf.errors.NotFoundError as error:
                cause = checkpoint_state.unshared(error)
                if cause is None:
                    raise
                raise errors.UnreadableCheckpoint(f"{save_path}: {cause}.") from error
        self._restored = save_path

    def save(
        self, sess: Session, save_path: str, global_step: Object = None, **options: Object
    ) -> str:
        if global_step is not None and not isinstance(global_step, (int, np.integer)):
            global_step = tf.train.global_step(sess, global_step)
        path = save_path if global_step is None else f"{save_path}-{global_step}"
        if self._restored is not None and _absolute(path) == _absolute(self._restored):
            log.info("%s was just restored, so it is not written again.", path)
            return path
        try:
            return super().save(sess, save_path, global_step, **options)
        except (tf.errors.AbortedError, tf.errors.UnavailableError):
            raise  # sessions recover from these errors
        except (tf.errors.OpError, OSError) as error:
            # Partial files would keep a full disk full.
            with contextlib.suppress(tf.errors.OpError):
                tf.io.gfile.rmtree(f"{path}_temp")
            is_op = isinstance(error, tf.errors.OpError)
            cause = checkpoint_state.unshared(error) if is_op else None
            cause = cause or checkpoint_state.reason(error)
            # For some failures TensorFlow raises OutOfRangeError. A session would treat this error
            # as the end of the input, and training would look complete.
            raise errors.CannotWrite(
                f"{path}: the checkpoint cannot be written: {cause}. Older checkpoints are "
                "unchanged."
            ) from error

    def _restore(self, session: Session, path: str, reader: Reader) -> None:
        if self._partial is None or not reader.tensors.keys().isdisjoint(self._missing):
            if self._in_large_pieces is not None and _has_large_pieces(reader):
                self._in_large_pieces.restore(session, path)
            else:
                super().restore(session, path)
            return
        self._partial.restore(session, path)
        session.run(self._initialize_missing)
        log.warning(
            f"{path} has no slots {self._missing}: they get their initial values. If the "
            "checkpoint was written with the other value of `use_tpu`, `estimator-bridge convert "
            "--slots` renames the slots."
        )


_BYTES_AT_ONCE = 64 << 20
"""How many bytes of rows to reorder at a time. They must fit into a message of at most 2 GiB."""


class RowsByMod:
    """Reorders the rows of tables with partition_strategy="mod" if the number of parts has changed.

    Part `k` of `n` (hosts or parameter servers) has the ids k, k + n, k + 2n, ...
    """

    def __init__(self, tables: TableVariables) -> None:
        self._parts: dict[str, list[_Part]] = {}
        for variable in tf.global_variables():
            key, shape = tf_compat.checkpoint_key(variable), tf_compat.checkpoint_shape(variable)
            if shape is not None and tables.is_table_or_slot(key, shape):
                self._parts.setdefault(key, []).append(_Part(variable))

    def put_in_order(self, session: Session, reader: Reader) -> None:
        for key, parts in self._parts.items():
            tensor = reader.tensors.get(key)
            if tensor is None:
                continue
            if tensor.part_rows is None:
                raise errors.InvalidInput(
                    f"{reader.prefix}: {tensor.name!r} is not stored in blocks of rows, one block "
                    'per host, as tables with partition_strategy="mod" must be. Restore a '
                    "checkpoint of this model."
                )
            if tensor.hosts != len(parts):
                layout = RowLayout(tensor.shape[0], tensor.hosts, "mod")
                for number, part in enumerate(parts):
                    ids = np.arange(number, tensor.shape[0], len(parts))
                    part.read(session, reader, tensor, layout.stored(ids))


class _Part:
    def __init__(self, variable: Variable) -> None:
        dtype = variable.dtype.base_dtype
        self._ids = tf.placeholder(tf.int64, [None])
        self._rows = tf.placeholder(dtype, [None, *variable.shape[1:]])
        self._write = tf.scatter_update(variable, self._ids, self._rows)

    def read(self, session: Session, reader: Reader, tensor: StoredTensor, places: Array) -> None:
        at_once = max(1, _BYTES_AT_ONCE // max(1, tensor.row_size))
        for first in range(0, len(places), at_once):
            some = places[first : first + at_once]
            feed = {
                self._ids: np.arange(first, first + len(some)),
                self._rows: reader.rows(tensor, some),
            }
            session.run(self._write.op, feed)


def add_job_saver(step: ModelStep, job: EstimatorJob) -> None:
    if (step.scaffold and step.scaffold.saver) or tf.get_collection(tf.GraphKeys.SAVERS):
        return
    stored, in_one_piece = None, False
    if job.checkpoint is not None:
        stored, in_one_piece = _stored_variables(job.checkpoint)
    if stored and step.train_op is not None and job.config.is_chief:
        _keep_slots(stored, step.tables)
    saver = JobSaver(
        stored,
        step.tables,
        in_one_piece=in_one_piece,
        sharded=True,
        max_to_keep=job.config.keep_checkpoint_max,
        keep_checkpoint_every_n_hours=job.config.keep_checkpoint_every_n_hours,
        defer_build=True,
        allow_empty=True,
        save_relative_paths=True,
    )
    tf.add_to_collection(tf.GraphKeys.SAVERS, saver)


def _absolute(path: str) -> str:
    return os.path.abspath(path) if checkpoint_state.is_local(path) else path


def _stored_variables(checkpoint: str) -> tuple[VariableShapes, bool]:
    if not checkpoint_state.has_index(checkpoint):
        return {name: tuple(shape) for name, shape in tf.train.list_variables(checkpoint)}, False
    with reading(checkpoint), Reader(checkpoint) as reader:
        shapes = {name: tensor.shape for name, tensor in reader.tensors.items()}
        return shapes, _has_large_pieces(reader)


def _has_large_pieces(reader: Reader) -> bool:
    return any(
        piece.size > max(2 * SLICE_BYTES, tensor.row_size)
        for tensor in reader.tensors.values()
        if tensor.shape
        for piece in tensor.slices
    )


def _keep_slots(stored: VariableShapes, tables: TableVariables) -> None:
    known = {tf_compat.checkpoint_key(variable) for variable in tf.global_variables()}
    for name, shape in stored.items():
        if name not in known and tables.is_slot(name, shape):
            zeros = tf.zeros_initializer()
            tf.get_variable(name, shape, tf.float32, zeros, trainable=False, use_resource=True)


SLICE_BYTES = 40 << 20
"""The largest size of a slice.

glibc keeps freed blocks of up to 32 MiB (M_MMAP_THRESHOLD_MAX) in its heaps. Slices are larger, so
their memory returns to the system. Up to three slices are in memory together.
"""

_ALIGNED_ROWS = 16
"""A slice is stored without a copy if its number of rows is a multiple of this."""

Ranges = Sequence[tuple[int, int]]
"""Ranges of consecutive rows in a stored tensor: (first row, number of rows)."""


def in_slices(
    objects: Sequence[Object], tables: TableVariables, most_bytes: int | None
) -> list[Object]:
    """Prepares variables and other objects for a Saver: large variables are cut into slices.

    Parts of a table in "mod" order are not cut, because the order of a part's rows depends on the
    part's index. If `most_bytes` is None, each range of rows is one slice.
    """
    parts: dict[str, list[Variable]] = {}
    saved: list[Object] = []
    for each in objects:
        if tf_compat.row_ranges(each) is None:
            saved.append(each)
        else:
            parts.setdefault(tf_compat.checkpoint_key(each), []).append(each)
    for key, variables in parts.items():
        rows = None if _is_by_mod(key, variables, tables) else _slice_rows(variables, most_bytes)
        if rows is None:
            saved += variables
        else:
            saved += [
                tf_compat.VariableInSlices(each, tuple(cut(tf_compat.row_ranges(each) or (), rows)))
                for each in variables
            ]
    return saved


def cut(ranges: Ranges, rows: int) -> Iterator[tuple[int, int]]:
    for start, count in ranges:
        for first in range(0, count, rows):
            yield start + first, min(rows, count - first)


def rows_at_once(ranges: Ranges, row_bytes: int, most_bytes: int) -> int | None:
    """Computes the number of rows per slice; None if the ranges need not be cut.

    The slices never have the sizes that the parts of a table in "mod" order would have. A reader
    could not tell such slices from parts in "mod" order.
    """
    rows = max(1, most_bytes // max(1, row_bytes))
    if all(count <= rows for _, count in ranges):
        return None
    if rows > _ALIGNED_ROWS:
        rows -= rows % _ALIGNED_ROWS
    total = sum(count for _, count in ranges)
    while rows > 1:
        counts = tuple(count for _, count in cut(ranges, rows))
        if counts != sharding.shard_rows(total, len(counts)):
            break
        rows -= _ALIGNED_ROWS if rows > _ALIGNED_ROWS else 1
    return rows


def _is_by_mod(key: str, parts: Sequence[Variable], tables: TableVariables) -> bool:
    shape = tf_compat.checkpoint_shape(parts[0])
    by_mod = tables.strategy == "mod" and len(parts) > 1
    return by_mod and shape is not None and tables.is_table_or_slot(key, shape)


def _slice_rows(parts: Sequence[Variable], most_bytes: int | None) -> int | None:
    of_parts = [tf_compat.row_ranges(part) or () for part in parts]
    ranges = sorted(each for ranges in of_parts for each in ranges)
    rows = None
    if most_bytes is not None:
        row_bytes = parts[0].dtype.size * parts[0].shape[1:].num_elements()
        rows = rows_at_once(ranges, row_bytes, most_bytes)
    if rows is None and any(len(ranges) > 1 for ranges in of_parts):
        rows = max(count for _, count in ranges)
    return rows
