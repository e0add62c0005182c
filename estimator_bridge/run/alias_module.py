"""A module under one of stock's paths whose names lead to the bridge."""

from __future__ import annotations

import importlib
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from estimator_bridge import errors
from estimator_bridge.run.stock_names import Names


class AliasModule(ModuleType):
    """Imports what a name leads to when the name is first used.

    Args:
        path: of stock's module.
        names: what is in it, beside submodules; other names are refused.
        is_package: whether it has submodules.
    """

    def __init__(self, path: str, names: Names, is_package: bool) -> None:
        super().__init__(path, f"Stands for stock's module of this name: {', '.join(names)}.")
        self.__spec__ = ModuleSpec(path, None, is_package=is_package)
        if is_package:
            # Nothing is found below it but what is in sys.modules.
            self.__path__: list[str] = []
        self.__all__ = list(names)
        self._names = names

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self._names:
            raise errors.LeftOut(
                f"`{self.__name__}.{name}` is left out: the bridge takes the place of stock's "
                f"module, with {', '.join(self._names) or 'nothing but its submodules'}. See "
                "`estimator_bridge.run.install.installed()` for all that there is."
            )
        value = load(self._names[name])
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._names})


def load(target: str) -> Any:
    """Returns what "module" or "module:attribute" names."""
    module, _, attribute = target.partition(":")
    loaded = importlib.import_module(module)
    return getattr(loaded, attribute) if attribute else loaded
