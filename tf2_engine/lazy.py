"""Imports the names of a package when they are first used."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Iterable
from typing import Any, cast


def exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Makes the `__getattr__` and `__dir__` of a package.

    The package offers the names that its source imports for type checkers:

        if TYPE_CHECKING:
            from package.conversion import convert

        __getattr__, __dir__ = lazy.exports(__name__)

    They are also its `__all__`, unless it defines another one.
    """

    @functools.cache
    def modules() -> dict[str, str]:
        return dict(_checked_imports(package))

    def attribute(name: str) -> Any:
        if name == "__all__":
            return sorted(modules())
        if name not in modules():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(modules()[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return attribute, lambda: sorted({*vars(sys.modules[package]), *modules()})


def _checked_imports(package: str) -> Iterable[tuple[str, str]]:
    for block in _source(package):
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for statement in block.body:
                if isinstance(statement, ast.ImportFrom) and statement.module:
                    yield from ((alias.name, statement.module) for alias in statement.names)


def _source(module: str) -> list[ast.stmt]:
    spec = importlib.util.find_spec(module)  # does not import the module
    loader = cast(importlib.abc.InspectLoader, spec.loader) if spec else None
    source = loader.get_source(module) if loader else None
    if source is None:
        raise ImportError(
            f"The source of `{module}` is not there, from which the names of its package are read. "
            "Install the package with its sources."
        )
    return ast.parse(source).body
