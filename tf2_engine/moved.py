"""Keeps the old names of modules importable: an old name is an alias, with a warning."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
import warnings
from collections.abc import Mapping, Sequence


class MovedModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports modules that have moved from where they are now.

    Python asks it first: a folder of compiled files that an old version left behind would otherwise
    be imported as an empty package.

    Args:
        new_names: the new name of each module that moved, by its old one. Modules inside of a
            package that moved are found in the package's new place.
    """

    def __init__(self, new_names: Mapping[str, str]) -> None:
        self._new_names = new_names

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns a spec that leads to the new module, or None for a name that did not move."""
        new_name = self._new_name(fullname)
        if new_name is None or importlib.util.find_spec(new_name) is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, loader_state=new_name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Returns the new module itself, so that both names hold the same classes."""
        module = importlib.import_module(spec.loader_state)
        warnings.warn(
            f"`{spec.name}` is now `{spec.loader_state}`; the old name will go in version 1.0.",
            DeprecationWarning,
            stacklevel=2,
        )
        # An import sets `__spec__` of what it is given; the module keeps its own.
        alias = types.ModuleType(spec.name)
        alias.__dict__["_moved_to"] = module
        return alias

    def exec_module(self, module: types.ModuleType) -> None:
        """Puts the new module where the import system looks for the result of the import."""
        sys.modules[module.__name__] = module.__dict__["_moved_to"]

    def _new_name(self, name: str) -> str | None:
        head, tail = name, ""
        while head:
            if head in self._new_names:
                return self._new_names[head] + tail
            head, dot, last = head.rpartition(".")
            tail = f"{dot}{last}{tail}"
        return None


def keep_importable(new_names: Mapping[str, str]) -> None:
    """Makes modules importable by their old names as well.

    Args:
        new_names: as for `MovedModules`.
    """
    sys.meta_path.insert(0, MovedModules(new_names))
