"""Imports the names of a package on first use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def exports(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Creates the `__getattr__` and `__dir__` of a package.

        if TYPE_CHECKING:
            from package.conversion import convert

        __getattr__, __dir__ = lazy.exports(__name__, {"package.conversion": ["convert"]})

    Unless the package defines `__all__`, its `__all__` is the sorted list of the names.
    """
    modules = {name: module for module, of_module in names.items() for name in of_module}

    def attribute(name: str) -> Any:
        if name == "__all__":
            return sorted(modules)
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return attribute, lambda: sorted({*vars(sys.modules[package]), *modules})
