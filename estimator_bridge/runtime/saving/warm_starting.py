"""Starts the variables of a traced model from another job's checkpoint or SavedModel."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.convert.bundle import Reader
from estimator_bridge.legacy.warm_start import WarmStartSettings
from estimator_bridge.runtime.saving.checkpoint_state import has_index
from estimator_bridge.runtime.saving.job_saver import TableVariables
from estimator_bridge.runtime.step.activation_proxy import DUMMY_NAME

_FIELDS = WarmStartSettings._fields
_DUMMY = DUMMY_NAME.format("")
_PART = re.compile(r"/part_\d+$")


def read_settings(warm_start_from: Any) -> WarmStartSettings | None:
    """Returns what an estimator's `warm_start_from` asks for.

    Args:
        warm_start_from: None, the path of a checkpoint, of its directory or of a SavedModel; or
            settings, stock's or ours.

    Raises:
        InvalidInput: it is none of these.
    """
    if warm_start_from is None:
        return None
    if isinstance(warm_start_from, (str, bytes, os.PathLike)):
        path = os.fsdecode(warm_start_from)
        variables = os.path.join(path, "variables", "variables")
        if tf.io.gfile.exists(f"{variables}.index"):
            tf.logging.info("Warm-starting from the SavedModel %s", path)
            path = variables
        return WarmStartSettings(path)
    if all(hasattr(warm_start_from, field) for field in _FIELDS):
        return WarmStartSettings(*(getattr(warm_start_from, field) for field in _FIELDS))
    raise errors.InvalidInput(
        "`warm_start_from` must be a path or a WarmStartSettings, got "
        f"{warm_start_from!r} of type {type(warm_start_from).__name__}."
    )


def checkpoint_of(settings: WarmStartSettings) -> str | None:
    """Returns the checkpoint that the settings mean, the latest where they name a directory."""
    path = os.fspath(settings.ckpt_to_initialize_from)
    return tf.train.latest_checkpoint(path) if tf.io.gfile.isdir(path) else path


def check_hosts(checkpoint: str | None, tables: TableVariables) -> None:
    """Refuses rows in an order that is not that of the ids.

    Raises:
        InvalidInput: several hosts spread them by "mod"; warm starts copy rows as they are stored.
    """
    if checkpoint is None or tables.strategy != "mod" or not has_index(checkpoint):
        return
    with Reader(checkpoint) as reader:
        spread = sorted(
            name
            for name, tensor in reader.tensors.items()
            if tensor.sliced and tables.is_part(name, tensor.shape)
        )
    if spread:
        raise errors.InvalidInput(
            f"`warm_start_from`: {checkpoint} holds {spread} as several hosts with "
            'partition_strategy="mod" keep them, whose order fits no other number of hosts. Use '
            "what `estimator-bridge convert --to names` makes of it."
        )


def warm_start(settings: WarmStartSettings, tables: Sequence[tf.Variable]) -> None:
    """Gives variables of the default graph initialisers that read the checkpoint.

    Unlike `tf.compat.v1.train.warm_start`, which is called underneath, a regular expression
    reaches the engine's tables too, though they are not trainable; their slots start anew unless a
    list names them. The variables that stand for tables in the model hold nothing, and are left
    alone.

    Args:
        tables: the shards of all tables of the engine.

    Raises:
        ValueError: the checkpoint lacks a variable, or settings name one that is not there.
    """
    tf.logging.info("Warm-starting with WarmStartSettings: %s", settings)
    path, chosen, vocabularies, renamed = settings
    if isinstance(chosen, str):
        chosen = _matching(chosen, [*tf.trainable_variables(), *tables])
    elif chosen is None:
        known = [*tf.trainable_variables(), *tables]
        chosen = [variable for variable in known if _name(variable) in vocabularies]
    elif chosen and all(isinstance(pattern, str) for pattern in chosen):
        known = tf.global_variables()
        chosen = [variable for pattern in chosen for variable in _matching(pattern, known)]
    tf.train.warm_start(path, _without_dummies(chosen), vocabularies, renamed)


def _matching(pattern: str, variables: Iterable[tf.Variable]) -> list[tf.Variable]:
    # As the scope of `tf.get_collection`: from the beginning of the name.
    return [variable for variable in variables if re.match(pattern, variable.name)]


def _without_dummies(variables: Iterable[tf.Variable]) -> list[tf.Variable]:
    kept = {v.ref(): v for v in variables if not v.op.name.startswith(_DUMMY)}
    return list(kept.values())


def _name(variable: tf.Variable) -> str:
    return _PART.sub("", variable.op.name)
