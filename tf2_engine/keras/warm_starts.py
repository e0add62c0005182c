"""Starts the variables of a Keras model with those of another model's checkpoint."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from tf2_engine import checkpoint_names, errors
from tf2_engine.types import Object, Variable


class WarmStart(NamedTuple):
    """The initial values of variables.

    Attributes:
        checkpoint: of an estimator, or converted, or the directory of some.
        pattern: a regular expression, which is matched with the beginning of names.
        old_names: names in that checkpoint, by those of the model, where they differ.
    """

    checkpoint: str
    pattern: str
    old_names: Mapping[str, str]

    def assign(self, variables: Mapping[str, Variable]) -> None:
        """Gives variables, by their names, the values of the checkpoint.

        Raises:
            InvalidInput: the checkpoint lacks a variable, or has another shape of it.
        """
        reader = tf.train.load_checkpoint(self.checkpoint)
        shapes = reader.get_variable_to_shape_map()
        for name, variable in variables.items():
            if not re.match(self.pattern, name):
                continue
            old = self.old_names.get(name, name)
            converted = checkpoint_names.key_of_variable(old)
            key = converted if converted in shapes else old
            if list(shapes.get(key, ())) != variable.shape.as_list():
                raise errors.InvalidInput(
                    f"The variable {name}, {variable.shape}, starts with {old} of "
                    f"{self.checkpoint}, {shapes.get(key, 'which is not there')}. Choose by "
                    "`names` those that start so, or say by `old_names` what they are called there."
                )
            variable.assign(reader.get_tensor(key))


def warm_start(
    checkpoint: Object, names: str = ".*", old_names: Mapping[str, str] | None = None
) -> WarmStart:
    """Returns the initial values of variables; see `TableModel.warm_start_from`.

    Raises:
        WrongType: the checkpoint is no path.
    """
    if not isinstance(checkpoint, (str, os.PathLike)):
        raise errors.WrongType(
            f"`warm_start_from`: {checkpoint!r} is no path. Give the path of a checkpoint, and as "
            "`names` and `old_names` what the settings of an estimator had."
        )
    return WarmStart(os.fspath(checkpoint), names, dict(old_names or {}))
