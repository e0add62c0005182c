"""Modules with stock's names. Each name is imported from the bridge on first use."""

from __future__ import annotations

import dis
import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import NoReturn

from estimator_bridge import errors
from estimator_bridge.run.keras_choice import use_legacy_keras
from estimator_bridge.run.stock_names import (
    NAMESPACE,
    NAMESPACE_V2,
    REASON_OF_OTHER_MODULES,
    REASONS_IN_MODULES,
    REASONS_OF_MODULES,
    SYMBOLS,
    UNSUPPORTED,
    Names,
    lacking,
)
from tf2_engine.types import Object


def load(target: str) -> Object:
    module, _, attributes = target.partition(":")
    names = filter(None, attributes.split("."))
    return functools.reduce(getattr, names, importlib.import_module(module))


def exports(module: str) -> tuple[Callable[[str], Object], Callable[[], list[str]], list[str]]:
    """Makes `__getattr__`, `__dir__` and `__all__` for a module of `tf.estimator`.

        __getattr__, __dir__, __all__ = namespaces.exports(__name__)

    The first use of a name makes `tf.keras` Keras 2, or raises TooLate if Keras 3 is already
    loaded.
    """
    is_v2 = module == NAMESPACE_V2
    below = "" if is_v2 else module.removeprefix(NAMESPACE).removeprefix(".")
    homes = {
        symbol.name: symbol.home_v2 if is_v2 else symbol.home
        for symbol in SYMBOLS
        if symbol.namespace == below
    }
    reasons = {} if below else UNSUPPORTED
    stock_name = f"tf.estimator.{below}".removesuffix(".")

    def attribute(name: str) -> Object:
        if name in reasons:
            raise refusal(f"`{stock_name}.{name}` is not supported: {reasons[name]}.", name)
        if name not in homes:
            raise AttributeError(f"`{stock_name}` has no attribute {name!r}.")
        use_legacy_keras()
        value = load(homes[name])
        setattr(sys.modules[module], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[module]), *homes})

    return attribute, names, sorted(homes)


def refusal(message: str, name: str) -> errors.EngineError:
    """Makes the error that a module's `__getattr__` raises for a missing name.

    It is an AttributeError, but for `from module import name` an ImportError, because Python would
    drop the message of any other error.
    """
    error: errors.EngineError = errors.Unsupported(message)
    if imports_from(sys._getframe(2)):
        error = errors.UnsupportedImport(message, name=name)
    return error


def imports_from(frame: FrameType) -> bool:
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] == "IMPORT_FROM"


class AliasModule(ModuleType):
    """Takes the place of one of stock's modules, and refuses names that the bridge lacks.

    If only some names are replaced, `stock` is the module that has the others.
    """

    def __init__(
        self, path: str, names: Names, is_package: bool, stock: ModuleType | None = None
    ) -> None:
        super().__init__(path, f"Replaces stock's module of this name: {', '.join(names)}.")
        self.__spec__ = ModuleSpec(path, None, is_package=is_package)
        if is_package:
            # An empty path makes imports find only modules that are already in sys.modules.
            self.__path__: list[str] = []
        self.__all__ = list(names)
        self._names, self._stock = names, stock

    def __getattr__(self, name: str) -> Object:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if name in lacking(self.__name__):
            value: Object = _Lacking(name, (), {"_refusal": self._refusal_of(name)})
        elif name in self._names:
            value = load(self._names[name])
        elif hasattr(self._stock, name):
            return getattr(self._stock, name)
        else:
            raise refusal(self._refusal_of(name), name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._names})

    def _refusal_of(self, name: str) -> str:
        reason = {**REASONS_OF_MODULES, **REASONS_IN_MODULES}.get(name)
        way_out = f" {reason[0].upper()}{reason[1:]}." if reason else ""
        return (
            f"`{self.__name__}.{name}` is not supported: the bridge replaces stock's module, "
            f"and provides {', '.join(self._names) or 'only its submodules'}.{way_out} "
            "`estimator_bridge.install.installed()` lists all names."
        )


class _Lacking(type):
    """A placeholder that programs may import and derive from; any other use raises Unsupported."""

    _refusal: str

    def __call__(cls, *args: Object, **settings: Object) -> NoReturn:
        raise errors.Unsupported(cls._refusal)

    def __getattr__(cls, name: str) -> NoReturn:
        raise errors.Unsupported(f"{cls.__name__}.{name}: {cls._refusal}")


class LeftOutModules:
    """An import finder whose error says why the bridge lacks one of stock's modules."""

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = tuple(f"{root}." for root in roots)

    def find_spec(
        self, path: str, search: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not path.startswith(self._roots):
            return None
        reasons = (
            reason
            for below, reason in REASONS_OF_MODULES.items()
            if f".estimator.{below}." in f"{path}."
        )
        reason = next(reasons, REASON_OF_OTHER_MODULES)
        raise errors.UnsupportedImport(f"The module {path} is not supported: {reason}.", name=path)
