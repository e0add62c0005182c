"""Detects whether a program is written for TensorFlow 1, without running it."""

from __future__ import annotations

import ast
import os
import pathlib
import re
import sys
from types import ModuleType

from estimator_bridge.run.program_lines import Libraries
from estimator_bridge.run.tf1.reading import Reading, Use
from tf2_engine.types import Object

_CONTRIB = "tensorflow.contrib"
_IMPORT_FROM = re.compile(r"cannot import name '(\w+)' from '(tensorflow[\w.]*)'")


def find_use(script: str, folder: str | None = None) -> Use | None:
    """Finds the first use of a name that only TensorFlow 1 has, in a script and its imports.

    Code that does not run with TensorFlow 2 does not count. If the program itself switches to
    `tf.compat.v1` on TensorFlow 2, such a name counts only if every run reaches it. Modules in
    `folder` or on PYTHONPATH are read, unless they belong to a library.
    """
    script = os.path.abspath(script)
    files = _Files(folders_of_imports(folder or os.path.dirname(script)), Libraries(script))
    files.read(script)
    readings = files.in_order_of_imports(script)
    uses = [each for reading in readings for each in reading.uses]
    if uses and any(reading.adapts for reading in readings):
        always = _always_reached(readings)
        uses = [each for each in uses if each.is_sure and always.issuperset(each.scope)]
    unreached = _unreached(readings) if uses else set()
    return next((each.use for each in uses if unreached.isdisjoint(each.scope)), None)


def folders_of_imports(folder: str) -> list[str]:
    return [folder, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]


def file_of(module: str, folders: list[str]) -> str | None:
    for folder in folders:
        stem = os.path.join(folder, *module.split("."))
        for path in (f"{stem}.py", os.path.join(stem, "__init__.py")):
            if os.path.isfile(path):
                return path
    return None


def missing_name(error: BaseException) -> str | None:
    if isinstance(error, ModuleNotFoundError):
        name = error.name or ""
        return name if f"{name}.".startswith(f"{_CONTRIB}.") else None
    imported = _IMPORT_FROM.match(str(error)) if isinstance(error, ImportError) else None
    if imported is not None:
        name, module = imported.groups()
        path = module.removeprefix("tensorflow").removeprefix("._api.v2").removeprefix(".")
        return f"{module}.{name}" if name == "contrib" or _has_v1(path, name) else None
    owner = getattr(error, "obj", None)
    if not isinstance(error, AttributeError) or not isinstance(owner, ModuleType):
        return None
    path, name = _public_path(owner), error.name or ""
    if path is None or not (name == "contrib" or _has_v1(path, name)):
        return None
    return ".".join(filter(None, ["tf", path, name]))


class _Files:
    def __init__(self, folders: list[str], libraries: Libraries) -> None:
        self._folders, self._libraries = folders, libraries
        self._readings: dict[str, Reading | None] = {}

    def read(self, path: str) -> Reading | None:
        if path not in self._readings:
            self._readings[path] = None
            try:
                tree = ast.parse(pathlib.Path(path).read_bytes())
            except (OSError, SyntaxError, ValueError):  # the program reports the error when it runs
                return None
            self._readings[path] = Reading(path, tree, self._module)
        return self._readings[path]

    def _module(self, name: str, importer: str, level: int) -> Reading | None:
        where = [str(pathlib.Path(importer).parents[level - 1])] if level else self._folders
        file = file_of(name, where)
        return None if file is None or self._libraries.have(file) else self.read(file)

    def in_order_of_imports(self, script: str) -> list[Reading]:
        ordered = {script: self._readings[script]}
        for path in (waiting := [script]):
            reading = ordered[path]
            for mention in reading.mentions if reading else ():
                if mention.name in self._readings and mention.name not in ordered:
                    ordered[mention.name] = self._readings[mention.name]
                    waiting.append(mention.name)
        return [each for each in ordered.values() if each is not None]


def _unreached(readings: list[Reading]) -> set[str]:
    mentions = [each for reading in readings for each in reading.mentions]
    defined = {name for reading in readings for name in (reading.path, *reading.defined)}
    more = defined & {each.name for each in mentions if not each.is_reached}
    doubtful: set[str] = set()
    while more - doubtful:
        doubtful |= more
        more = defined & {each.name for each in mentions if not doubtful.isdisjoint(each.scope)}
    reached = {""}
    while reached:
        sure = (each for each in mentions if each.is_reached and doubtful.isdisjoint(each.scope))
        reached = doubtful & {each.name for each in sure}
        doubtful -= reached
    return doubtful


def _always_reached(readings: list[Reading]) -> set[str]:
    mentions = [each for reading in readings for each in reading.mentions if each.is_sure]
    defined = {name for reading in readings for name in (reading.path, *reading.defined)}
    reached: set[str] = set()
    more = {readings[0].path, *(name for name in defined if name.startswith("__"))}
    while more - reached:
        reached |= more
        more = defined & {
            each.name for each in mentions if each.is_reached and reached.issuperset(each.scope)
        }
    return reached


def _public_path(module: ModuleType) -> str | None:
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
