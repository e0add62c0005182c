"""The Saver of a job: it loses no checkpoint that is there, and restores what fits."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.convert import object_graph
from estimator_bridge.convert.bundle import Reader
from estimator_bridge.convert.layout import Layout
from estimator_bridge.runtime.saving.checkpoint_state import has_index, is_local, reading, reason
from tf2_engine import sharding, tf_compat

Shapes = Mapping[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class TableVariables:
    """Which variables are the tables of an embedding spec, and what belongs to these.

    Attributes:
        shapes: of each table, by the name of its variable but for a scope.
        strategy: how checkpoints of several hosts hold their rows, "div" or "mod".
    """

    shapes: Shapes = dataclasses.field(default_factory=dict)
    strategy: str = "div"

    def is_slot(self, key: str, shape: Sequence[int]) -> bool:
        """Returns whether a variable is a slot: after that of its table, and of its shape."""
        return any(
            f"/{name}/" in f"/{key}" and tuple(shape) == of_table
            for name, of_table in self.shapes.items()
        )

    def is_part(self, key: str, shape: Sequence[int]) -> bool:
        """Returns whether a variable is a table or a slot."""
        return self.is_slot(f"{key}/", shape)


class JobSaver(tf.train.Saver):
    """Restores and saves a job's variables.

    Unlike a plain Saver
    * it does not write the checkpoint again that it restored, as is done at the start of each
      training: killed in the middle of that, a job would have lost its latest checkpoint;
    * slots of tables that the checkpoint lacks start anew, as `tables` tells slots;
    * rows that several hosts spread by "mod" are put into the order of the one host here;
    * an error names the file.

    Args:
        stored: the variables of the checkpoint that is going to be restored; None if there is
            none.
        tables: which variables are tables.
        options: of `tf.train.Saver`.
    """

    def __init__(
        self, stored: Shapes | None = None, tables: TableVariables | None = None, **options: Any
    ) -> None:
        self._stored = stored
        self._tables = tables or TableVariables()
        self._restored: str | None = None
        self._partial: tf.train.Saver | None = None
        self._missing: list[str] = []
        self._start: Any = None
        super().__init__(**options)

    def build(self) -> None:
        """Makes the ops, those for missing slots too: once a session runs it is too late."""
        if self._is_built:
            return
        super().build()
        if self._stored is None or object_graph.KEY in self._stored:
            return
        present: list[Any] = tf.get_collection(tf.GraphKeys.SAVEABLE_OBJECTS)
        missing = {}
        for variable in tf.global_variables():
            key = tf_compat.checkpoint_key(variable)
            if key not in self._stored and self._tables.is_slot(key, variable.shape):
                missing[key] = variable
            else:
                present.append(variable)
        if missing:
            self._missing = sorted(missing)
            self._partial = tf.train.Saver(present, sharded=True)
            self._start = tf.variables_initializer(list(missing.values()))

    def restore(self, sess: Any, save_path: str) -> None:
        """Restores a checkpoint.

        Raises:
            UnreadableCheckpoint: a file is damaged or missing; the message names it and the last
                good checkpoint.
        """
        if not has_index(save_path):
            super().restore(sess, save_path)
        else:
            with reading(save_path), Reader(save_path) as reader:  # holds sizes against the files
                self._restore(sess, save_path, set(reader.tensors))
                if self._tables.strategy == "mod":
                    self._put_in_order(sess, reader)
        self._restored = save_path

    def save(self, sess: Any, save_path: str, global_step: Any = None, **options: Any) -> Any:
        """Saves a checkpoint, unless it is the one that was restored; returns its path.

        Raises:
            CannotWrite: a file cannot be written; the message names it.
        """
        if global_step is not None and not isinstance(global_step, (int, np.integer)):
            global_step = tf.train.global_step(sess, global_step)
        path = save_path if global_step is None else f"{save_path}-{global_step}"
        if self._restored is not None and _same(path, self._restored):
            tf.logging.info("%s was restored, and is kept as it is.", path)
            return path
        try:
            return super().save(sess, save_path, global_step, **options)
        except (tf.errors.AbortedError, tf.errors.UnavailableError):
            raise  # sessions recover from these
        except (tf.errors.OpError, OSError) as error:
            # It would keep a full disk full.
            with contextlib.suppress(tf.errors.OpError):
                tf.io.gfile.rmtree(f"{path}_temp")
            # As an OutOfRangeError, which TensorFlow makes of some, it would pass for the end of
            # the input, and training for complete.
            raise errors.CannotWrite(
                f"{path}: the checkpoint cannot be written: {reason(error)}. Older checkpoints are "
                "as they were."
            ) from error

    def _restore(self, session: Any, path: str, names: set[str]) -> None:
        if self._partial is None or not names.isdisjoint(self._missing):
            super().restore(session, path)
            return
        self._partial.restore(session, path)
        session.run(self._start)
        tf.logging.warning(
            "%s has no slots %s: they start anew. Where it was made with the other `use_tpu`, "
            "`estimator-bridge convert --slots` gives slots their other names.",
            path,
            self._missing,
        )

    def _put_in_order(self, session: Any, reader: Reader) -> None:
        """Reads the rows of tables, by id, from a checkpoint of several hosts."""
        for variable in session.graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES):
            key = tf_compat.checkpoint_key(variable)
            tensor = reader.tensors.get(key)
            if tensor is None or not tensor.sliced or not self._tables.is_part(key, tensor.shape):
                continue
            rows = tensor.part_rows
            if rows is None or rows != sharding.shard_rows(tensor.shape[0], len(rows)):
                raise errors.InvalidInput(
                    f"{reader.prefix}: {key!r} is stored in parts that are not those of hosts "
                    'with partition_strategy="mod".'
                )
            layout = Layout(tensor.shape[0], len(rows), "mod")
            ids = np.arange(tensor.shape[0])
            values = reader.rows(tensor, layout.stored(ids))
            session.run(variable.initializer, {variable.initializer.inputs[1]: values})


def stored_variables(checkpoint: str | None) -> Shapes | None:
    """Returns the variables of a checkpoint by name; None without one.

    Raises:
        UnreadableCheckpoint: its index is damaged.
    """
    if checkpoint is None:
        return None
    if not has_index(checkpoint):
        return {name: tuple(shape) for name, shape in tf.train.list_variables(checkpoint)}
    with reading(checkpoint), Reader(checkpoint) as reader:
        return {name: tensor.shape for name, tensor in reader.tensors.items()}


def keep_slots(stored: Shapes | None, tables: TableVariables) -> None:
    """Makes variables of the slots that only the checkpoint has, so that later ones have them.

    They are of the other `use_tpu`, or of an optimizer from before: whoever goes back finds them.
    """
    known = {tf_compat.checkpoint_key(variable) for variable in tf.global_variables()}
    for name, shape in (stored or {}).items():
        if name not in known and tables.is_slot(name, shape):
            tf.get_variable(
                name,
                shape,
                tf.float32,
                tf.zeros_initializer(),
                trainable=False,
                use_resource=True,
            )


def _same(path: str, other: str) -> bool:
    if not is_local(path):
        return path == other
    return os.path.abspath(path) == os.path.abspath(other)
