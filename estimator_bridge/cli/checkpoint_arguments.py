"""What the checkpoint commands share: the argument `--spec`, pairs, and how errors are told."""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from collections.abc import Callable
from typing import Any

HELP = (
    "the program's EmbeddingConfigSpec, as module:attribute or file.py:name; a function without "
    "arguments that returns one will do. The module is imported: it is your program, and it runs"
)


def load(text: str) -> Any:
    """Imports what the argument names; legacy names are the bridge's where TensorFlow has none.

    Raises:
        InvalidInput: there is no such thing.
    """
    from estimator_bridge import errors
    from estimator_bridge.run import install

    install.install()
    where, _, name = text.rpartition(":")
    if not where or not name:
        raise errors.InvalidInput(f"--spec must be module:attribute or file.py:name, got {text!r}.")
    if where.endswith(".py"):
        if not os.path.isfile(where):
            raise errors.InvalidInput(f"--spec: there is no file {where!r}.")
        sys.path.insert(0, os.path.dirname(os.path.abspath(where)))
        found = runpy.run_path(where, run_name="__spec__")
    else:
        sys.path.insert(0, os.getcwd())
        try:
            found = vars(importlib.import_module(where))
        except ModuleNotFoundError as error:
            raise errors.InvalidInput(f"--spec: {error}.") from error
    if name not in found:
        raise errors.InvalidInput(f"--spec: {where} has no {name!r}.")
    spec = found[name]
    if callable(spec) and not hasattr(spec, "table_to_config_dict"):
        spec = spec()
    if not hasattr(spec, "table_to_config_dict") or not hasattr(spec, "feature_columns"):
        raise errors.InvalidInput(f"--spec: {text} is no EmbeddingConfigSpec, but {spec!r}.")
    return spec


def pairs(option: str, given: list[str]) -> dict[str, str]:
    """Returns repeated NAME=VALUE arguments as a dict.

    Raises:
        InvalidInput: one has no "=".
    """
    from estimator_bridge import errors

    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise errors.InvalidInput(f"{option} must be NAME=VALUE, got {text!r}.")
        found[name] = value
    return found


def reported(command: Callable[[], None]) -> int:
    """Runs a command; returns 0, or 1 after an error of the project was told on stderr."""
    from tf2_engine.errors import EngineError

    try:
        command()
    except EngineError as error:
        print(f"\nestimator-bridge: {error}", file=sys.stderr)
        return 1
    return 0
