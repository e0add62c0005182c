"""Saves and restores a trainer: tables, variables under their legacy names, and the step."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import tensorflow as tf

from tf2_engine import checkpoint_names as names
from tf2_engine import errors, tf_compat
from tf2_engine.training import model_variables
from tf2_engine.training.model import Model
from tf2_engine.training.replacements import Saver
from tf2_engine.training.trainer_specs import WarmStartSettings
from tf2_engine.types import Array, Object, Variable


class CheckpointReader(NamedTuple):
    """Reads variables by legacy name, from a checkpoint of a trainer or of a legacy program.

    `keys` maps the legacy name of each variable to its key in the checkpoint.
    """

    reader: Object
    keys: Mapping[str, str]

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        shapes = self.reader.get_variable_to_shape_map()
        return {name: shapes[key] for name, key in self.keys.items()}

    def get_variable_to_dtype_map(self) -> dict[str, tf.DType]:
        dtypes = self.reader.get_variable_to_dtype_map()
        return {name: dtypes[key] for name, key in self.keys.items()}

    def has_tensor(self, name: str) -> bool:
        return name in self.keys

    def get_tensor(self, name: str) -> Array:
        value: Array = self.reader.get_tensor(self.keys.get(name, name))
        return value


def load_checkpoint(ckpt_dir_or_file: str) -> CheckpointReader:
    """Opens a checkpoint, as `tf.train.load_checkpoint` does."""
    reader = tf.train.load_checkpoint(ckpt_dir_or_file)
    stored = reader.get_variable_to_shape_map()
    keys = {name: name for name in stored}
    if "_CHECKPOINTABLE_OBJECT_GRAPH" in stored:
        found = names.names_in(stored)
        ways = (names.key_of_variable, names.key_of_table)
        keys = {name: key for name in found for way in ways if (key := way(name)) in stored}
        if names.KEY_OF_STEP in stored:
            keys[names.GLOBAL_STEP] = names.KEY_OF_STEP
    return CheckpointReader(reader, keys)


def list_variables(ckpt_dir_or_file: str) -> list[tuple[str, list[int]]]:
    """Lists the legacy names and shapes of variables, as `tf.train.list_variables` does."""
    return sorted(load_checkpoint(ckpt_dir_or_file).get_variable_to_shape_map().items())


def load_variable(ckpt_dir_or_file: str, name: str) -> Array:
    """Reads a variable, as `tf.train.load_variable` does."""
    return load_checkpoint(ckpt_dir_or_file).get_tensor(name)


def init_from_checkpoint(ckpt_dir_or_file: str, assignment_map: Mapping[str, Object]) -> None:
    """Starts the variables of a model_fn with the values of another checkpoint.

    If the model already has a checkpoint of its own, it starts from that checkpoint instead.

    Args:
        assignment_map: maps names or scopes in the checkpoint to variables, names or scopes in the
            model, as in `tf.compat.v1.train.init_from_checkpoint`.
    """
    store = model_variables.current()
    made = {id(each): name for name, each in store.variables.items()}
    for old, new in assignment_map.items():
        if not isinstance(new, str):
            # A partitioned variable is a list of parts, here of a single part.
            variable = tf.nest.flatten(new)[0]
            name = made.get(id(variable), model_variables.name_of(variable))
            store.starts[name] = ckpt_dir_or_file, old
        elif old.endswith("/"):
            scope = new.removeprefix("/")
            for name in made.values():
                if name.startswith(scope):
                    path = f"{old.removeprefix('/')}{name.removeprefix(scope)}"
                    store.starts[name] = ckpt_dir_or_file, path
        else:
            store.starts[new] = ckpt_dir_or_file, old


_NAME = "model.ckpt"


class Checkpoints:
    """The checkpoints of a trainer, `tf.train.Checkpoint(embedding, global_step, variables)`.

    They have the format of `estimator-bridge convert`, so training can continue where the legacy
    program ended. Variables are created and restored when the first batch arrives.

    Attributes:
        at: the checkpoint whose values the variables have now, or None.
    """

    def __init__(
        self, directory: str, model: Model, warm_start: str | WarmStartSettings | None
    ) -> None:
        self._directory, self._model, self._warm_start = directory, model, warm_start
        self._store, self._step = model.store, model.step
        self._saved = tf.Module()
        self._checkpoint: Object = None  # both are created with the first variables
        self._manager: Object = None
        self._restored: Object = None
        self._start: str | None = None
        self._pinned = False
        self.at: str | None = None

    def latest(self) -> str | None:
        path: str | None = tf.train.latest_checkpoint(self._directory)
        return path

    def check(self, checkpoint: str) -> None:
        tables = self._model.embedding.engine_spec.tables
        of_legacy_tables = getattr(self._model.spec, "partition_strategy", "div")
        names.check_converted(checkpoint, self._directory, tables, of_legacy_tables)

    def restore(self, checkpoint: str, *, pinned: bool = False) -> None:
        """Restores the step immediately, and the variables when the first batch creates them.

        If `pinned`, later checkpoints in the directory are ignored until a checkpoint is saved.
        """
        self.check(checkpoint)
        tf.train.Checkpoint(global_step=self._step).restore(checkpoint).expect_partial()
        self._start, self.at, self._pinned = checkpoint, checkpoint, pinned
        if self._checkpoint is not None:
            self._restored = self._checkpoint.restore(checkpoint)

    def go_to(self, checkpoint: str | None) -> None:
        wanted = checkpoint or (self.at if self._pinned else self.latest())
        if wanted is None and self.at is not None:
            raise errors.OutOfOrder(
                f"Evaluating {self.at} has overwritten this trainer's variables, and "
                f"{self._directory} has no checkpoint from which to restore them. Evaluate other "
                "checkpoints with another Trainer."
            )
        if wanted is not None and wanted != self.at:
            self.restore(wanted)

    def add_created(self) -> None:
        known = vars(self._saved)
        new = {name: each for name, each in self._store.variables.items() if name not in known}
        if self._start and new:
            # Otherwise a variable might get the value of another variable with the same name.
            names.check_complete(self._start, self._store.variables)
        else:
            self._take_starts(new)
        for name, variable in new.items():
            if name in self._store.averaged:
                variable.assign(self._store.variables[self._store.averaged[name]])
            setattr(self._saved, name, variable)
        if self._checkpoint is None:
            self._checkpoint = tf.train.Checkpoint(
                embedding=self._model.engine, global_step=self._step, variables=self._saved
            )
            if self._start:
                self._restored = self._checkpoint.restore(self._start)
            elif self._warm_start is not None:
                self._start_warm(self._warm_start)
        if self._restored is not None:
            self._restored.assert_existing_objects_matched().expect_partial()

    def _take_starts(self, new: Mapping[str, Variable]) -> None:
        for name in new.keys() & self._store.starts.keys():
            checkpoint, old = self._store.starts[name]
            new[name].assign(load_checkpoint(checkpoint).get_tensor(old))

    def keep(self, saver: Saver | None) -> None:
        config = self._model.config
        most, hours = config.keep_checkpoint_max, config.keep_checkpoint_every_n_hours
        if saver is not None:
            most, hours = saver.max_to_keep, saver.keep_checkpoint_every_n_hours
        self._manager = tf.train.CheckpointManager(
            self._checkpoint,
            self._directory,
            max_to_keep=most or None,
            keep_checkpoint_every_n_hours=hours or None,
            checkpoint_name=_NAME,
        )

    def save(self) -> str:
        path: str = self._manager.save(self._step)
        self.at, self._pinned = path, False
        return path

    def save_while(self, condition: Callable[[], bool]) -> bool:
        """Saves a checkpoint. If `condition()` is False afterwards, deletes it and returns False.

        Any thread may call this, as long as no variable changes during the call.
        """
        if self.at is not None:
            return condition()
        self._checkpoint.save_counter.assign_add(1)  # created by the first save
        path = os.path.join(self._directory, f"{_NAME}-{int(self._step.numpy())}")
        self._checkpoint.write(path)
        if not condition():
            for part in tf.io.gfile.glob(f"{path}.*"):
                tf.io.gfile.remove(part)
            return False
        tf_compat.publish_checkpoint(path)
        self.at, self._pinned = path, False
        return True

    def state(self) -> str:
        if self.at is None:
            return "nothing is saved since the last checkpoint"
        return f"step {int(self._step.numpy())} is saved in {os.path.dirname(self.at)}"

    @contextlib.contextmanager
    def as_in_session(self, saver: Saver | None, *, changes: bool) -> Iterator[None]:
        """In this context, variables have the values with which an evaluation or prediction starts.

        Local variables are reset. Variables that a `saver` renames are read from the checkpoint
        under the saver's names. On exit, these variables get their previous values back. If
        steps may change variables (`changes`), all variables get their previous values back.
        """
        store, starts = self._store, []
        for name, variable in (saver.renamed if saver and self.at else {}).items():
            variable_name = model_variables.name_of(variable)
            if name != variable_name and variable_name in store.variables:
                starts.append((store.variables[variable_name], names.key_of_variable(name)))
        touched = [*store.local.values(), *(variable for variable, _ in starts)]
        if changes:
            touched = [self._step, *store.variables.values(), *store.local.values()]
        before = [variable.numpy() for variable in touched]
        store.start_local()
        if starts:
            reader = tf.train.load_checkpoint(self.at)
            for variable, key in starts:
                variable.assign(reader.get_tensor(key))
        at = self.at
        try:
            yield
        finally:
            # A generator of predictions may end after further training, or when the process ends.
            if self.at == at and not sys.is_finalizing():
                for variable, value in zip(touched, before, strict=True):
                    variable.assign(value)

    def _start_warm(self, settings: str | WarmStartSettings) -> None:
        if isinstance(settings, str):
            settings = WarmStartSettings(settings)
        reader = load_checkpoint(settings.ckpt_to_initialize_from)
        for name, variable in self._store.variables.items():
            old = settings.old_name(name, trainable=variable.trainable)
            if old is not None:
                variable.assign(reader.get_tensor(old))
        for table, variable in self._model.engine.embedding_tables.items():
            name = str(getattr(table, "name", table))
            old = settings.old_name_of_table(name)
            if old is not None:
                variable.assign(reader.get_tensor(old))
        self._model.engine.load()
