"""Lists the public names of TensorFlow 2.21 for commands that run where it is not installed.

TF_USE_LEGACY_KERAS=1 python -m compat_tests.goldens.record_public_names
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import tensorflow as tf

from estimator_bridge.run import public_names

_CONSTANTS = (bool, bytes, float, int, str, tuple, type(None))


class Keys:
    """Gives each object a key, in the order in which they are asked for."""

    def __init__(self) -> None:
        self._keys: dict[object, str] = {}
        self._kept: list[object] = []  # an id is that of one object as long as the object lives

    def of(self, path: str, value: Any) -> str:
        """Returns the key of an object; a constant has one for each path: Python shares them."""
        self._kept.append(value)
        by = (path, str(value)) if isinstance(value, _CONSTANTS) else id(value)
        prefix = "m" if isinstance(value, ModuleType) else ""
        return self._keys.setdefault(by, f"{prefix}{len(self._keys)}")


def lines() -> Iterator[str]:
    keys, seen = Keys(), set()
    waiting = [("", tf.compat.v1), ("", tf)]
    functions: dict[str, dict[str, Any]] = {}
    while waiting:
        path, module = waiting.pop(0)
        key = keys.of("root", module)
        if key in seen:
            continue
        seen.add(key)
        members = [(name, getattr(module, name)) for name in sorted(_public(module, path))]
        found = [(name, keys.of(f"{path}{name}", value)) for name, value in members]
        yield " ".join([key, *itertools.chain(*found)])
        for (name, of_name), (_, value) in zip(found, members, strict=True):
            functions.setdefault(f"{path}{name}", {})[of_name] = value
            if isinstance(value, ModuleType) and _is_of_api(value):
                waiting.append((f"{path}{name}.", value))
    # Parameters matter where TensorFlow 1 and 2 have different functions of one name.
    two = itertools.chain(*(each.items() for each in functions.values() if len(each) == 2))
    for key, function in dict(two).items():
        names = parameters(function)
        if names:
            yield " ".join([f"({key}", *names])


def parameters(function: Any) -> list[str]:
    """Returns the names of a function's parameters, or none if it takes any number of them."""
    try:
        names = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return []
    any_number = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [] if any(each.kind in any_number for each in names.values()) else [*names]


def _public(module: ModuleType, path: str) -> list[str]:
    names = [name for name in dir(module) if not name.startswith("_") and hasattr(module, name)]
    return [name for name in names if path or name != "compat"]


def _is_of_api(module: ModuleType) -> bool:
    return "_api" in module.__name__ or "keras" in module.__name__


if __name__ == "__main__":
    public_names.LIST.write_text("\n".join(lines()) + "\n", encoding="ascii")
