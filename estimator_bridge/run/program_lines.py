"""Distinguishes a program's files from those of packages, and finds the line that failed."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import pathlib
import re
import site
import sys
import sysconfig
import traceback
import urllib.parse
from collections.abc import Iterator

import tf2_engine

_INSTALLED = re.compile(r"[/\\](site-packages|dist-packages|[^/\\]+\.egg)[/\\]")
"""Matches the folders into which installers write, for this Python or another one."""

_PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg")


class Libraries:
    """The libraries that a program may import, except the project or package of `script`.

    Attributes:
        have_script: whether the script itself is installed, as part of a library.
    """

    def __init__(self, script: str | None = None) -> None:
        self._script = os.path.realpath(script) if script else None
        self._linked = [each for each in _linked_folders() if not self._is_in_project_of(each)]
        entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        self._named = [_folder(each) for each in entries if each]
        self._package = ""
        self.have_script = self._script is not None and self._is_installed(self._script)
        if self._script and self.have_script:
            self._package = _outermost_package(pathlib.Path(self._script).parent)
        self._known: dict[str, bool] = {}

    def have(self, path: str) -> bool:
        if path not in self._known:
            written, real = _forms(path)
            installed = self._is_installed(written) or self._is_installed(real)
            is_packaged = bool(self._package) and real.startswith(self._package)
            self._known[path] = installed and not is_packaged
        return self._known[path]

    def _is_installed(self, path: str) -> bool:
        if _INSTALLED.search(path) or path.startswith(_python_and_bridge()):
            return True
        if any(path in _recorded(str(folder)) for folder in pathlib.Path(path).parents):
            return True
        # If folders in both `_linked` and `_named` contain the file, the innermost folder decides.
        linked, named = (
            max((len(each) for each in folders if path.startswith(each)), default=0)
            for folders in (self._linked, self._named)
        )
        return linked > named

    def _is_in_project_of(self, folder: str) -> bool:
        if self._script is None:
            return False
        project, home = _project(folder), os.path.dirname(self._script)
        if project is not None:
            return project == _project(home)
        return _folder(home).startswith(folder) or folder.startswith(_folder(home))


def _forms(path: str) -> tuple[str, str]:
    # An installed file may be a symbolic link, or be reached through one.
    return os.path.abspath(path), os.path.realpath(path)


def _folder(path: str) -> str:
    return os.path.join(os.path.realpath(path), "")


@functools.cache
def _python_and_bridge() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    folders |= {str(pathlib.Path(__file__).parents[1]), os.path.dirname(tf2_engine.__file__)}
    return tuple(os.path.join(form, "") for folder in folders for form in _forms(folder))


def _linked_folders() -> Iterator[str]:
    # In sys.path, PYTHONPATH is before the standard library, and folders of `.pth` files after.
    stdlib = sysconfig.get_path("stdlib")
    yield from map(_folder, sys.path[sys.path.index(stdlib) + 1 :] if stdlib in sys.path else [])
    for distribution in importlib.metadata.distributions():
        text = distribution.read_text("direct_url.json")
        origin = json.loads(text) if text else {}
        if origin.get("dir_info", {}).get("editable"):
            yield _folder(urllib.parse.unquote(urllib.parse.urlparse(origin["url"]).path))


@functools.cache
def _recorded(folder: str) -> frozenset[str]:
    return frozenset(
        os.path.normpath(os.path.join(folder, file))
        for distribution in importlib.metadata.distributions(path=[folder])
        if distribution.read_text("RECORD")
        for file in distribution.files or ()
    )


def _project(folder: str) -> str | None:
    path = pathlib.Path(folder)
    for each in (path, *path.parents):
        if any((each / name).is_file() for name in _PROJECT_FILES):
            return _folder(str(each))
    return None


def _outermost_package(folder: pathlib.Path) -> str:
    package = ""
    while (folder / "__init__.py").is_file():
        package, folder = _folder(str(folder)), folder.parent
    return package


def is_of_program(filename: str) -> bool:
    forms = _forms(filename)
    return "<" not in filename and not any(form.startswith(_python_and_bridge()) for form in forms)


def line_of_error(error: BaseException) -> str | None:
    if isinstance(error, SyntaxError) and error.filename:
        return place(error.filename, error.lineno)
    frames = traceback.extract_tb(error.__traceback__)
    of_program = [frame for frame in frames if is_of_program(frame.filename)]
    return place(of_program[-1].filename, of_program[-1].lineno) if of_program else None


def place(filename: str, line: int | None) -> str:
    return f"{filename}, line {line}" if line else filename


def described(error: BaseException) -> str:
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    kind, text = type(error).__name__, " ".join(message.split())
    return f"{kind}: {text}" if text else kind
