"""Finds out whether a program is written for TensorFlow 1, without running it."""

from __future__ import annotations

import ast
import os
import pathlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

from estimator_bridge.run import keras_choice
from tf2_engine.types import Object

_CONTRIB = "tensorflow.contrib"


class Use(NamedTuple):
    """A name of TensorFlow 1 that TensorFlow 2 lacks, as a program writes it, and where."""

    name: str
    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.name} ({os.path.basename(self.path)}, line {self.line})"


def find_use(script: str, folder: str | None = None) -> Use | None:
    """Returns the first use of a name that only TensorFlow 1 has, in a script or its imports.

    Of the modules that it imports those are read that lie in `folder`, which by default is the
    script's, or in the folders of PYTHONPATH.
    """
    folders = folders_of_imports(folder or os.path.dirname(os.path.abspath(script)))
    seen, waiting = set(), [os.path.abspath(script)]
    while waiting:
        path = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        try:
            tree = ast.parse(pathlib.Path(path).read_bytes())
        except (OSError, SyntaxError, ValueError):  # Reported when the program runs.
            continue
        for use in _uses(tree, path):
            return use
        waiting += _imported_files(tree, path, folders)
    return None


def folders_of_imports(folder: str) -> list[str]:
    """Returns the folders in which modules of programs are looked for: one, and PYTHONPATH's."""
    return [folder, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]


def file_of(module: str, folders: list[str]) -> str | None:
    """Returns the file of a module by its full name, in the first of the folders that has it."""
    for folder in folders:
        stem = os.path.join(folder, *module.split("."))
        for path in (f"{stem}.py", os.path.join(stem, "__init__.py")):
            if os.path.isfile(path):
                return path
    return None


def missing_name(error: BaseException) -> str | None:
    """Returns the name of TensorFlow 1 for whose lack a program failed; None if for another."""
    if isinstance(error, ModuleNotFoundError):
        name = error.name or ""
        return name if f"{name}.".startswith(f"{_CONTRIB}.") else None
    owner = getattr(error, "obj", None)
    if not isinstance(error, AttributeError) or not isinstance(owner, ModuleType):
        return None
    path, name = _public_path(owner), error.name or ""
    if path is None or not (name == "contrib" or _has_v1(path, name)):
        return None
    return ".".join(filter(None, ["tf", path, name]))


def _uses(tree: ast.AST, path: str) -> Iterator[Use]:
    aliases: set[str] = set()
    rebound: set[str] = set()
    for node in ast.walk(tree):
        for name, alias in _imports(node):
            if f"{name}.".startswith(f"{_CONTRIB}."):
                yield Use(name, path, getattr(node, "lineno", 0))
            (aliases if name == "tensorflow" else rebound).add(alias)
        if isinstance(node, ast.Assign):
            rebound |= {each.id for each in node.targets if isinstance(each, ast.Name)}
    # `tf` may also be tf.compat.v1, which has all of them but contrib.
    for node in ast.walk(tree):
        names = _chain(node)
        if names and names[0] in aliases - rebound and _is_of_tf1(names[1:]):
            yield Use(".".join(names), path, getattr(node, "lineno", 0))


def _imports(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yields the modules or names that a statement imports, and the names that it gives them."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.name, alias.asname or alias.name
    elif isinstance(node, ast.ImportFrom) and not node.level:
        for alias in node.names:
            yield f"{node.module}.{alias.name}", alias.asname or alias.name


def _chain(node: ast.AST) -> list[str]:
    """Returns the names of `a.b.c`; an empty list for another expression."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return [node.id, *names] if names and isinstance(node, ast.Name) else []


def _is_of_tf1(names: list[str]) -> bool:
    """Returns whether TensorFlow 1 has a public name and TensorFlow 2 lacks it."""
    if names[0] == "contrib":
        return True
    # Not before it is needed: a source without such names is read quickly.
    import tensorflow as tf

    if names[0] == "keras" and not (keras_choice.is_2_15() or "TF_USE_LEGACY_KERAS" in os.environ):
        return False  # To look at tf.keras would load Keras 3 for the process.
    new: Object = tf
    old: Object = tf.compat.v1
    for name in names:
        if not isinstance(new, ModuleType) or not isinstance(old, ModuleType):
            return False
        if not hasattr(new, name):
            return hasattr(old, name)
        new, old = getattr(new, name), getattr(old, name, None)
    return False


def _imported_files(tree: ast.AST, path: str, folders: list[str]) -> Iterator[str]:
    """Yields the files of modules that a module imports, as far as they lie in the folders."""
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        modules, where = [alias.name for alias in node.names], folders
        if isinstance(node, ast.ImportFrom):
            if node.module:
                modules = [node.module, *(f"{node.module}.{name}" for name in modules)]
            if node.level:
                where = [str(pathlib.Path(path).parents[node.level - 1])]
        yield from filter(None, (file_of(module, where) for module in modules))


def _public_path(module: ModuleType) -> str | None:
    """Returns the path below `tensorflow` of one of its public modules; None for another."""
    name = module.__name__
    if name == "tensorflow":
        return ""
    _, is_public, path = name.partition("tensorflow._api.v2.")
    if not is_public or path.startswith("compat"):
        return None
    return path


def _has_v1(path: str, name: str) -> bool:
    owner: Object = sys.modules["tensorflow.compat.v1"]
    for each in filter(None, path.split(".")):
        owner = getattr(owner, each, None)
    return hasattr(owner, name)
