"""Checks the arguments of an Estimator and of its methods."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from typing import TypeVar

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.base_run_config import RunConfig
from tf2_engine.types import Object

_Item = TypeVar("_Item")


def check_positive(name: str, value: int | None) -> None:
    """Raises an error if a number is neither None nor positive.

    Raises:
        InvalidInput: the message names it.
    """
    if value is not None and value <= 0:
        raise errors.InvalidInput(f"`{name}` must be positive, got {value}.")


def checked_config(config: RunConfig | None) -> RunConfig:
    """Returns the config, stock's or ours, or the default one.

    Raises:
        InvalidInput: it is not a RunConfig.
    """
    if config is None:
        return RunConfig()
    if not hasattr(config, "model_dir") or not hasattr(config, "replace"):
        raise errors.InvalidInput(f"`config` must be a RunConfig, got {config!r}.")
    return config


def with_model_dir(config: RunConfig, model_dir: str | os.PathLike[str] | None) -> RunConfig:
    """Returns the config with `model_dir`, its own model_dir, or a new temporary one.

    Raises:
        InvalidInput: the two differ.
    """
    path = None if model_dir is None else os.fspath(model_dir)
    if path is not None and config.model_dir not in (None, path):
        raise errors.InvalidInput(
            f"`model_dir` is {path!r}, but the RunConfig has {config.model_dir!r}. Give one "
            "of them, or the same."
        )
    path = path or config.model_dir
    if path is None:
        path = tempfile.mkdtemp()
        tf.logging.warning(
            "No model_dir is given; checkpoints go to the temporary folder %s.", path
        )
    return config.replace(model_dir=os.fspath(path))


def checked_list(items: Sequence[_Item] | None, kind: type[_Item]) -> list[_Item]:
    """Returns hooks or listeners as a list.

    Raises:
        WrongType: one is not of the kind.
    """
    for item in items or ():
        if not isinstance(item, kind):
            raise errors.WrongType(f"A {kind.__name__} is needed, got {item!r}.")
    return list(items or ())


def checked_receiver_fn(function: Callable[[], Object] | None) -> Callable[[], Object]:
    """Returns the receiver function.

    Raises:
        InvalidInput: it is None.
    """
    if not function:
        raise errors.InvalidInput("`serving_input_receiver_fn` must be given.")
    return function
