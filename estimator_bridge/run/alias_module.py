"""A module at one of stock's paths whose names lead to the bridge."""

from __future__ import annotations

import functools
import importlib
from importlib.machinery import ModuleSpec
from types import ModuleType

from estimator_bridge import errors
from estimator_bridge.run.stock_names import Names
from tf2_engine.types import Object


class AliasModule(ModuleType):
    """Imports the target of a name when the name is first used.

    Args:
        path: the path of stock's module.
        names: its names, without submodules; other names are refused.
        is_package: whether it has submodules.
    """

    def __init__(self, path: str, names: Names, is_package: bool) -> None:
        super().__init__(path, f"Stands for stock's module of this name: {', '.join(names)}.")
        self.__spec__ = ModuleSpec(path, None, is_package=is_package)
        if is_package:
            # Nothing is found below it but the modules in sys.modules.
            self.__path__: list[str] = []
        self.__all__ = list(names)
        self._names = names

    def __getattr__(self, name: str) -> Object:
        if name.startswith("__") or name not in self._names:
            raise errors.Unsupported(
                f"`{self.__name__}.{name}` is not supported: the bridge takes the place of stock's "
                f"module, with {', '.join(self._names) or 'nothing but its submodules'}. See "
                "`estimator_bridge.run.install.installed()` for all names that there are."
            )
        value = load(self._names[name])
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._names})


def load(target: str) -> Object:
    """Returns the object of "module" or "module:attribute"; the attribute may have dots."""
    module, _, attributes = target.partition(":")
    return functools.reduce(
        getattr, filter(None, attributes.split(".")), importlib.import_module(module)
    )
