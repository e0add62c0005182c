"""Modules with stock's names, which are imported from the bridge when they are first used."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType

from estimator_bridge import errors
from estimator_bridge.run.stock_names import NAMESPACE, NAMESPACE_V2, SYMBOLS, Names
from estimator_bridge.run.unsupported import REASONS
from tf2_engine.types import Object


def load(target: str) -> Object:
    """Returns the object of "module" or "module:attribute"; the attribute may have dots."""
    module, _, attributes = target.partition(":")
    names = filter(None, attributes.split("."))
    return functools.reduce(getattr, names, importlib.import_module(module))


def exports(module: str) -> tuple[Callable[[str], Object], Callable[[], list[str]], list[str]]:
    """Returns `__getattr__`, `__dir__` and `__all__` of a module of `tf.estimator`.

        __getattr__, __dir__, __all__ = namespaces.exports(__name__)

    Its names are those that `stock_names.SYMBOLS` has for it; those in `unsupported.REASONS` raise
    an `Unsupported` with the way out.
    """
    is_v2 = module == NAMESPACE_V2
    below = "" if is_v2 else module.removeprefix(NAMESPACE).removeprefix(".")
    homes = {
        symbol.name: symbol.home_v2 if is_v2 else symbol.home
        for symbol in SYMBOLS
        if symbol.namespace == below
    }
    reasons = REASONS.get(below, {})
    stock_name = f"tf.estimator.{below}".removesuffix(".")

    def attribute(name: str) -> Object:
        if name in reasons:
            raise errors.Unsupported(f"`{stock_name}.{name}` is not supported: {reasons[name]}.")
        if name not in homes:
            raise AttributeError(f"`{stock_name}` has no attribute {name!r}.")
        value = load(homes[name])
        setattr(sys.modules[module], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[module]), *homes})

    return attribute, names, sorted(homes)


class AliasModule(ModuleType):
    """A module at the path of one of stock's, which refuses names that the bridge lacks."""

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
                "`estimator_bridge.install.installed()` for all names that there are."
            )
        value = load(self._names[name])
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._names})
