"""Gives the modules of a program a `tensorflow` that no other module sees."""

from __future__ import annotations

import builtins
import contextlib
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType

from estimator_bridge.run.tf1.libraries import Libraries
from estimator_bridge.run.tf1.view import ContribModule, TF1View
from tf2_engine.types import Object

_ROOT = "tensorflow"


@contextlib.contextmanager
def seen_by_programs(view: TF1View, script: str | None = None) -> Iterator[None]:
    """Gives the program's modules the `view` when they import `tensorflow`, inside the context.

    Libraries, the standard library and the bridge keep TensorFlow as it is.

    Args:
        script: the program's first file, if it is known.
    """
    stock_import, stock_import_module = builtins.__import__, importlib.import_module
    libraries = Libraries(script)

    def import_(
        name: str,
        globals: Mapping[str, Object] | None = None,
        locals: Mapping[str, Object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        if level or not _is_tensorflow(name) or not _is_of_program(globals, libraries):
            return stock_import(name, globals, locals, fromlist or (), level)
        module = view.module(name)
        if not fromlist:
            return view
        for each in () if isinstance(module, ContribModule) else fromlist:
            if each != "*" and not hasattr(module, each):
                with contextlib.suppress(
                    ImportError
                ):  # The import itself will say what is missing.
                    setattr(module, each, view.module(f"{name}.{each}"))
        return module

    def import_module(name: str, package: str | None = None) -> ModuleType:
        caller = sys._getframe(1).f_globals
        if _is_tensorflow(name) and _is_of_program(caller, libraries):
            return view.module(name)
        return stock_import_module(name, package)

    builtins.__import__, importlib.import_module = import_, import_module
    try:
        yield
    finally:
        builtins.__import__, importlib.import_module = stock_import, stock_import_module


def _is_tensorflow(name: str) -> bool:
    return name == _ROOT or name.startswith(f"{_ROOT}.")


def _is_of_program(variables: Mapping[str, Object] | None, libraries: Libraries) -> bool:
    """Whether the module with these global variables belongs to the program."""
    path = (variables or {}).get("__file__")
    if (variables or {}).get("__name__") == "__main__":
        return True
    return isinstance(path, str) and not libraries.have(path)
