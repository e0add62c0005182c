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


def keep_importable(new_names: Mapping[str, str]) -> None:
    """Makes modules importable by their old names as well; `new_names` is as in `MovedModules`."""
    # The first finder, because a folder of which only __pycache__ is left passes for a package.
    sys.meta_path.insert(0, MovedModules(new_names))


class MovedModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports modules that have moved from where they are now; `new_names` are by old ones.

    Modules inside of a package that moved are found in the package's new place.
    """

    def __init__(self, new_names: Mapping[str, str]) -> None:
        self.new_names = new_names

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns a spec that leads to the new module, or None for a name that did not move."""
        moved = [old for old in self.new_names if f"{fullname}.".startswith(f"{old}.")]
        if not moved:
            return None
        old = max(moved, key=len)
        spec = importlib.util.find_spec(self.new_names[old] + fullname.removeprefix(old))
        return spec and importlib.machinery.ModuleSpec(fullname, self, loader_state=spec)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """Returns the new module itself, so that both names hold the same objects."""
        new_name = spec.loader_state.name
        module = importlib.import_module(new_name)
        warnings.warn(
            f"`{spec.name}` is now `{new_name}`; the old name will go in version 1.0.",
            DeprecationWarning,
            stacklevel=2,
        )
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Gives the module, which ran as the new one, its own spec back."""
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state
