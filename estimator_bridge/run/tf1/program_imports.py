"""Gives the modules of a program another `tensorflow` than all others have."""

from __future__ import annotations

import builtins
import contextlib
import importlib
import os
import pathlib
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType

import tf2_engine
from estimator_bridge.run.tf1.view import TF1View
from tf2_engine.types import Object

_ROOT = "tensorflow"


@contextlib.contextmanager
def seen_by_programs(view: TF1View) -> Iterator[None]:
    """Gives modules of programs that import `tensorflow` the `view`, in the context.

    Programs are all modules but those of the standard library, of installed packages and of the
    bridge.
    """
    stock_import, stock_import_module = builtins.__import__, importlib.import_module
    libraries = _Libraries()

    def import_(
        name: str,
        globals: Mapping[str, Object] | None = None,
        locals: Mapping[str, Object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        if level or not _is_tensorflow(name) or libraries.have(globals):
            return stock_import(name, globals, locals, fromlist or (), level)
        module = view.module(name)
        if not fromlist:
            return view
        for each in fromlist:
            if each != "*" and not hasattr(module, each):
                with contextlib.suppress(ImportError):  # The import itself says what is missing.
                    setattr(module, each, view.module(f"{name}.{each}"))
        return module

    def import_module(name: str, package: str | None = None) -> ModuleType:
        if _is_tensorflow(name) and not libraries.have(sys._getframe(1).f_globals):
            return view.module(name)
        return stock_import_module(name, package)

    builtins.__import__, importlib.import_module = import_, import_module
    try:
        yield
    finally:
        builtins.__import__, importlib.import_module = stock_import, stock_import_module


def _is_tensorflow(name: str) -> bool:
    return name == _ROOT or name.startswith(f"{_ROOT}.")


class _Libraries:
    """Tells the modules of libraries from those of programs."""

    def __init__(self) -> None:
        paths = sysconfig.get_paths()
        folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
        folders |= {*site.getsitepackages(), site.getusersitepackages()}
        folders |= {str(pathlib.Path(__file__).parents[2]), os.path.dirname(tf2_engine.__file__)}
        self._folders = tuple(os.path.join(os.path.realpath(each), "") for each in folders)
        self._known: dict[str, bool] = {}

    def have(self, variables: Mapping[str, Object] | None) -> bool:
        """Returns whether the module with these global variables is of a library."""
        path = (variables or {}).get("__file__")
        if not isinstance(path, str):
            return (variables or {}).get("__name__") != "__main__"
        if path not in self._known:
            self._known[path] = os.path.realpath(path).startswith(self._folders)
        return self._known[path]
