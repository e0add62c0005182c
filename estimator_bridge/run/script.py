"""Finds a program by name, and runs the program as Python would."""

from __future__ import annotations

import ast
import os
import pathlib
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import NamedTuple

from estimator_bridge import errors

_MAIN = "__main__.py"


class StartedProgram(NamedTuple):
    """A program as Python would start it: a script, a folder with a `__main__.py`, or a module."""

    name: str
    file: str
    folder: str  # the first folder in which Python looks for modules
    is_module: bool = False
    package: str = ""

    def beside(self, file: str) -> StartedProgram:
        if not self.is_module:
            return program_of(file)
        name = ".".join(filter(None, [self.package, pathlib.Path(file).stem]))
        return self._replace(name=name, file=file)


def program_of(name: str, is_module: bool = False) -> StartedProgram:
    """Finds a program without importing anything.

    Raises:
        InvalidInput: there is no such program, or it is a package or a folder that cannot be run.
    """
    if is_module:
        return _module(name)
    if os.path.isfile(name):
        return StartedProgram(name, name, os.path.dirname(os.path.realpath(name)))
    main = os.path.join(name, _MAIN)
    if os.path.isfile(main):
        return StartedProgram(name, main, os.path.abspath(name))
    if os.path.isdir(name):
        raise errors.InvalidInput(
            f"the folder {name!r} has no {_MAIN} to run. Name a program in it, or run one of its "
            "modules with -m."
        )
    raise errors.InvalidInput(f"there is no program {name!r}.")


class Found(NamedTuple):
    """Where a module is. A package also has `folders`."""

    file: str | None
    folders: Sequence[str] = ()


def find_module(name: str) -> Found | None:
    """Finds a module as Python would from the current folder, but without importing anything."""
    top, *below = name.split(".")
    try:
        spec = PathFinder.find_spec(top, [os.getcwd(), *sys.path]) or find_spec(top)
    except ValueError:  # a name that cannot be a module, such as "" or "__main__"
        return None
    for each in below:
        # To find a dotted name, Python would import its package, which may need the bridge.
        folders = [] if spec is None else [*(spec.submodule_search_locations or ())]
        spec = PathFinder.find_spec(each, folders) if folders and each else None
    if spec is None:
        return None
    file = spec.origin if spec.has_location else None  # a built-in module has no file
    return Found(file, [*(spec.submodule_search_locations or ())])


def _module(name: str) -> StartedProgram:
    found, package = find_module(name), name.rpartition(".")[0]
    if found is not None and found.folders:
        found, package = find_module(f"{name}.__main__"), name
        if found is None:
            raise errors.InvalidInput(
                f"-m: the package {name!r} has no {_MAIN} to run. Name the module that is the "
                f"program, such as {name}.train."
            )
    if found is None or found.file is None:
        way_out = f"Leave out {name[-3:]}: -m" if name.endswith(".py") else "-m"
        raise errors.InvalidInput(
            f"-m: there is no module {name!r}. {way_out} takes the name by which the program is "
            f"imported from {os.getcwd()} or PYTHONPATH."
        )
    return StartedProgram(name, found.file, os.getcwd(), is_module=True, package=package)


def run_program(program: StartedProgram, arguments: Sequence[str]) -> None:
    # Python, too, puts the folder of the program first.
    sys.path.insert(0, program.folder)
    if program.is_module:
        sys.argv = ["-m", *arguments]  # Python, too, shows "-m" while it imports the packages
        runpy.run_module(program.name, run_name="__main__", alter_sys=True)
    else:
        sys.argv = [program.name, *arguments]
        runpy.run_path(program.name, run_name="__main__")


def imports_bridge(script: str) -> bool:
    try:
        tree = ast.parse(pathlib.Path(script).read_bytes())
    except SyntaxError:  # reported when the script runs
        return False
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return any(name.partition(".")[0] == "estimator_bridge" for name in names)
