"""Checks what an Estimator and its methods are given; what does not fit is refused by name."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.base_run_config import RunConfig


def check_positive(name: str, value: int | None) -> None:
    """Refuses a number that is given and not positive.

    Raises:
        InvalidInput: names it.
    """
    if value is not None and value <= 0:
        raise errors.InvalidInput(f"`{name}` must be positive, got {value}.")


def checked_config(config: Any) -> Any:
    """Returns the config, or the default one; it must have what a RunConfig has."""
    if config is None:
        return RunConfig()
    if not hasattr(config, "model_dir") or not hasattr(config, "replace"):
        raise errors.InvalidInput(f"`config` must be a RunConfig, got {config!r}.")
    return config


def with_model_dir(config: Any, model_dir: str | os.PathLike[str] | None) -> Any:
    """Returns the config with the model_dir that is given, its own, or a new temporary one."""
    given = None if model_dir is None else os.fspath(model_dir)
    if given is not None and config.model_dir not in (None, given):
        raise errors.InvalidInput(
            f"`model_dir` is {given!r}, but the RunConfig has {config.model_dir!r}. Give one "
            "of them, or the same."
        )
    chosen = given or config.model_dir
    if chosen is None:
        chosen = tempfile.mkdtemp()
        tf.logging.warning(
            "No model_dir is given; checkpoints go to the temporary folder %s.", chosen
        )
    return config.replace(model_dir=os.fspath(chosen))


def all_of(given: Sequence[Any] | None, kind: type[Any]) -> list[Any]:
    """Returns hooks or listeners as a list; each must be of the kind."""
    for each in given or ():
        if not isinstance(each, kind):
            raise errors.WrongType(f"A {kind.__name__} is needed, got {each!r}.")
    return list(given or ())


def receiver_fn(function: Callable[[], Any] | None) -> Callable[[], Any]:
    """Returns the function that makes a receiver; there must be one."""
    if not function:
        raise errors.InvalidInput("`serving_input_receiver_fn` must be given.")
    return function
