"""`WarmStartSettings`, and warm starts: variables start from another job's values."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.checkpoint_files import Reader
from estimator_bridge.legacy.requirements import checked
from estimator_bridge.runtime.saving.checkpoint_state import has_index
from estimator_bridge.runtime.step.activation_proxy import DUMMY_NAME
from estimator_bridge.runtime.step.table_variables import TABLES, TableVariables
from tf2_engine import log, tf_compat
from tf2_engine.types import Object, Tensor, Variable

_DUMMY = DUMMY_NAME.format("")
_LATER_PART = re.compile(r"/part_[1-9]\d*$")


@checked
class WarmStartSettings(NamedTuple):
    """The variables that are initialized from another checkpoint.

    Attributes:
        ckpt_to_initialize_from: a checkpoint, or a directory, which stands for its latest
            checkpoint.
        vars_to_warm_start: a regular expression for trainable variables and tables; or a list of
            regular expressions for all variables; or a list of variables; or None for only the
            variables of `var_name_to_vocab_info`.
        var_name_to_vocab_info: the `tf.compat.v1.train.VocabInfo` of each variable whose rows or
            columns follow a vocabulary that has changed. Write the name of a table without the
            ending `/part_<i>`.
        var_name_to_prev_var_name: maps a variable's name to its name in the checkpoint, if the
            names differ.

    Raises:
        InvalidInput: no checkpoint is given.
    """

    ckpt_to_initialize_from: Object
    vars_to_warm_start: str | list[Object] | None = ".*"
    var_name_to_vocab_info: Object = None  # dicts after the check
    var_name_to_prev_var_name: Object = None

    def _checked(self) -> WarmStartSettings:
        if not self.ckpt_to_initialize_from:
            raise errors.InvalidInput(
                "`WarmStartSettings`: `ckpt_to_initialize_from` must name a checkpoint or its "
                f"directory, got {self.ckpt_to_initialize_from!r}."
            )
        return self._replace(
            var_name_to_vocab_info=self.var_name_to_vocab_info or {},
            var_name_to_prev_var_name=self.var_name_to_prev_var_name or {},
        )


_FIELDS = WarmStartSettings._fields


def read_settings(warm_start_from: Object) -> WarmStartSettings | None:
    if warm_start_from is None:
        return None
    if isinstance(warm_start_from, (str, bytes, os.PathLike)):
        path = os.fsdecode(warm_start_from)
        variables = os.path.join(path, "variables", "variables")
        if tf.io.gfile.exists(f"{variables}.index"):
            log.info("Warm-starting from the SavedModel %s", path)
            path = variables
        return WarmStartSettings(path)
    if all(hasattr(warm_start_from, field) for field in _FIELDS):
        return WarmStartSettings(*(getattr(warm_start_from, field) for field in _FIELDS))
    raise errors.InvalidInput(
        "`warm_start_from` must be a path or a WarmStartSettings, got "
        f"{warm_start_from!r} of type {type(warm_start_from).__name__}."
    )


def checkpoint_of(settings: WarmStartSettings) -> str | None:
    path = os.fspath(settings.ckpt_to_initialize_from)
    return tf.train.latest_checkpoint(path) if tf.io.gfile.isdir(path) else path


def warm_start(settings: WarmStartSettings, tables: TableVariables) -> None:
    """Makes the variables of the default graph start from the values in a checkpoint.

    Unlike in `tf.compat.v1.train.warm_start`, a regular expression also matches the engine's
    tables. The tables' slots get initial values, unless a list in the settings names the slots.
    """
    _check_hosts(checkpoint_of(settings), tables)
    log.info("Warm-starting with WarmStartSettings: %s", settings)
    path, chosen, vocabularies, renamed = settings
    known = [*tf.trainable_variables(), *tf.get_collection(TABLES)]
    if isinstance(chosen, str):
        chosen = _matching(chosen, known)
    elif chosen is None:
        chosen = [each for each in known if tf_compat.checkpoint_key(each) in vocabularies]
    elif chosen and all(isinstance(pattern, str) for pattern in chosen):
        known = tf.global_variables()
        chosen = [variable for pattern in chosen for variable in _matching(pattern, known)]
    kept = {v.ref(): v for v in chosen if not v.op.name.startswith(_DUMMY)}
    vocabularies = {
        name: _with_known_shape(info, [v for v in known if tf_compat.checkpoint_key(v) == name])
        for name, info in vocabularies.items()
    }
    tf.train.warm_start(path, list(kept.values()), vocabularies, renamed)


def _check_hosts(checkpoint: str | None, tables: TableVariables) -> None:
    if checkpoint is None or tables.strategy != "mod" or not has_index(checkpoint):
        return
    parts = [each.op.name for each in tf.get_collection(TABLES) if _LATER_PART.search(each.op.name)]
    if parts:
        raise errors.InvalidInput(
            f"`warm_start_from`: parameter servers hold {parts} in the order of "
            'partition_strategy="mod", but a warm start copies rows in the order of their ids. Use '
            'partition_strategy="div", or restore a checkpoint of this model instead.'
        )
    with Reader(checkpoint) as reader:
        sliced = {name: each.shape for name, each in reader.tensors.items() if each.hosts > 1}
    spread = [name for name in sorted(sliced) if tables.is_table_or_slot(name, sliced[name])]
    if spread:
        raise errors.InvalidInput(
            f"`warm_start_from`: {checkpoint} holds {spread} in the row order of several hosts "
            'with partition_strategy="mod", which only the same number of hosts can read. Convert '
            "it with `estimator-bridge convert --to names`, and start from the result."
        )


def _with_known_shape(info: Object, parts: Sequence[Variable]) -> Object:
    """Makes a VocabInfo whose initializer works for the new rows or columns of a variable.

    TensorFlow computes the shape of these rows or columns in the session, but some initializers,
    such as variance scaling, need a static shape. Such an initializer is called with the shape of
    the whole variable. The initial values are cast to the variable's type.
    """
    initializer = info.backup_initializer
    if initializer is None or not parts:
        return info
    name = tf_compat.checkpoint_key(parts[0])
    of_variable = f"`var_name_to_vocab_info`: the backup_initializer of {name!r}"
    if isinstance(initializer, type):
        initializer = initializer()
    if not callable(initializer):
        raise errors.WrongType(
            f"{of_variable} must be an initializer, such as tf.zeros_initializer(), or a function "
            f"of the shape, got {initializer!r}."
        )
    dtype = parts[0].dtype.base_dtype
    shape = [sum(part.shape[0] for part in parts), *parts[0].shape.as_list()[1:]]

    def initialize(asked: Sequence[Object]) -> Tensor:
        try:
            return tf.cast(initializer(asked), dtype)
        except (TypeError, ValueError, NotImplementedError) as error:
            if all(isinstance(size, int) for size in asked):
                raise errors.InvalidInput(
                    f"{of_variable} fails for the shape {[*asked]}: {error}"
                ) from error
        values = tf.reshape(tf.cast(initializer(shape), dtype), [-1, 1])
        return values[: tf.cast(asked[0], tf.int64)]

    return info._replace(backup_initializer=initialize)


def _matching(pattern: str, variables: Iterable[Variable]) -> list[Variable]:
    # Matches from the start of the name, like the scope of `tf.get_collection`.
    return [variable for variable in variables if re.match(pattern, variable.name)]
