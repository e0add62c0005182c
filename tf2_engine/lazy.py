"""Imports the names of a package on first use."""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator
from typing import Any


def exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Creates the `__getattr__` and `__dir__` of a package.

    The names are those that the package imports for type checkers:

        if TYPE_CHECKING:
            from package.conversion import convert

        __getattr__, __dir__ = lazy.exports(__name__)
    """

    @functools.cache
    def modules() -> dict[str, str]:
        return dict(_imports_of(pkgutil.get_data(package, "__init__.py") or b""))

    def attribute(name: str) -> Any:
        if name == "__all__":
            return sorted(modules())
        if name not in modules():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(modules()[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return attribute, lambda: sorted({*vars(sys.modules[package]), *modules()})


def _imports_of(source: bytes) -> Iterator[tuple[str, str]]:
    for block in ast.parse(source).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for each in block.body:
                assert isinstance(each, ast.ImportFrom) and each.module
                yield from ((name.name, each.module) for name in each.names)
