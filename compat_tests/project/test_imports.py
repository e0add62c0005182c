"""Imports of the packages follow rules that the layers in setup.cfg cannot express."""

from __future__ import annotations

import ast
import graphlib
import pathlib
from collections.abc import Iterator

import pytest

from compat_tests.support.paths import ROOT

PACKAGES = ("tf2_engine", "estimator_bridge")


def modules(package: str) -> dict[str, pathlib.Path]:
    names = {}
    for path in (ROOT / package).rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if path.stem == "__init__" else parts)] = path
    return names


def imported(tree: ast.AST, known: dict[str, pathlib.Path]) -> Iterator[str]:
    """Yields the modules that a source imports, those for type checkers alone included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in known else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)


def sorter(sources: dict[str, str]) -> graphlib.TopologicalSorter[str]:
    """Returns what sorts modules by their imports; a module may import from its own package."""
    known = {name: pathlib.Path() for name in sources}
    return graphlib.TopologicalSorter(
        {name: set(imported(ast.parse(source), known)) - {name} for name, source in sources.items()}
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_no_imports_go_in_circles(package: str) -> None:
    """Modules can be put in an order in which each imports earlier ones alone, types included."""
    paths = modules(package)
    assert paths
    sorter({name: path.read_text() for name, path in paths.items()}).prepare()


def test_a_circle_is_found() -> None:
    """A circle of three modules, of which one import is for type checkers, is an error."""
    sources = {
        "p.a": "from p import b",
        "p.b": "def f():\n  import p.c",
        "p.c": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  from p.a import A",
        "p": "",
    }
    with pytest.raises(graphlib.CycleError, match=r"p\.c"):
        sorter(sources).prepare()
    sources["p.c"] = ""
    sorter(sources).prepare()
