"""Starts the variables and tables of a Keras model with values from another checkpoint."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import tensorflow as tf

from tf2_engine import checkpoint_names, errors
from tf2_engine.types import Object, Variable


class WarmStart(NamedTuple):
    """A checkpoint, and the variables and tables that get initial values from this checkpoint.

    Attributes:
        checkpoint: a checkpoint of an estimator or of `convert`, or its directory.
        names: a regular expression that must match at the start of a name.
        old_names: maps names in this model to names in the checkpoint, where the names differ.
    """

    checkpoint: str
    names: str = ".*"
    old_names: Mapping[str, str] | None = None

    def assign(self, variables: Mapping[str, Variable], engine: Object = None) -> None:
        reader = tf.train.load_checkpoint(self.checkpoint)
        shapes = reader.get_variable_to_shape_map()
        for name, variable in variables.items():
            if re.match(self.names, name):
                self._assign(name, variable, checkpoint_names.key_of_variable, reader, shapes)
        tables = list(self._tables(engine))
        for name, variable in tables:
            self._assign(name, variable, checkpoint_names.key_of_table, reader, shapes)
        if tables:
            engine.load()

    def _tables(self, engine: Object) -> Iterator[tuple[str, Variable]]:
        for table, variable in {} if engine is None else engine.embedding_tables.items():
            name = str(getattr(table, "name", table))
            known_as = checkpoint_names.in_legacy_programs(name)
            if any(re.match(self.names, each) for each in known_as):
                yield name, variable

    def _assign(
        self, name: str, variable: Variable, key_of: Object, reader: Object, shapes: Object
    ) -> None:
        old = (self.old_names or {}).get(name, name)
        converted = key_of(old)
        key = converted if converted in shapes else old
        if list(shapes.get(key, ())) != variable.shape.as_list():
            found = f"its shape is {shapes[key]}" if key in shapes else "it is missing"
            raise errors.InvalidInput(
                f"The variable {name} of the shape {variable.shape} cannot start with {old} of "
                f"{self.checkpoint}: {found}. Select other variables with `names`, or set their "
                "names in the checkpoint in `old_names`."
            )
        variable.assign(reader.get_tensor(key))


def warm_start(
    checkpoint: Object, names: str = ".*", old_names: Mapping[str, str] | None = None
) -> WarmStart:
    if isinstance(checkpoint, WarmStart):
        return checkpoint
    if not isinstance(checkpoint, (str, os.PathLike)):
        raise errors.WrongType(
            f"`warm_start_from`: {checkpoint!r} is not a path. Pass the path of a checkpoint. Of "
            "an estimator's WarmStartSettings, pass `vars_to_warm_start` as `names`, and "
            "`var_name_to_prev_var_name` as `old_names`."
        )
    return WarmStart(os.fspath(checkpoint), names, dict(old_names or {}))
