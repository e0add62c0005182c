"""Reads checkpoints by legacy names, and starts variables with values from checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from tf2_engine import checkpoint_names as names
from tf2_engine.training import model_variables
from tf2_engine.types import Array, Object


class CheckpointReader(NamedTuple):
    """Reads variables by legacy name, from a checkpoint of a trainer or of a legacy program.

    Attributes:
        reader: the reader of TensorFlow.
        keys: maps the legacy name of each variable to its key in the checkpoint.
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

    If the model has its own checkpoint, this checkpoint is restored instead.

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
            store.starts[made.get(id(variable), _name(variable))] = ckpt_dir_or_file, old
        elif old.endswith("/"):
            scope = new.removeprefix("/")
            for name in made.values():
                if name.startswith(scope):
                    path = f"{old.removeprefix('/')}{name.removeprefix(scope)}"
                    store.starts[name] = ckpt_dir_or_file, path
        else:
            store.starts[new] = ckpt_dir_or_file, old


def _name(variable: Object) -> str:
    return str(variable.name.partition(":")[0])
