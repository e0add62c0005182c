"""Puts the bridge where legacy programs look for stock's names.

`install` fills names that this TensorFlow lacks; it replaces names of stock only when asked to.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

from estimator_bridge.run import stock_names
from estimator_bridge.run.alias_module import AliasModule, load
from estimator_bridge.run.changes import ABSENT, Changes
from estimator_bridge.run.installed_tensorflow import (
    has_stock,
    is_2_15,
    tensorflow_version,
    use_legacy_keras,
)
from tf2_engine.types import Object

__all__ = [
    "Installed",
    "has_stock",
    "install",
    "installed",
    "local_resolvers",
    "tensorflow_version",
    "uninstall",
    "use_legacy_keras",
]

_RESOLVER = "TPUClusterResolver"
_IN_PLACE = "estimator_bridge.run.cluster_resolver:in_place_of"

_changes = Changes()
_installed: list[Installed] = []


class Installed(NamedTuple):
    """A name that leads to the bridge.

    Attributes:
        name: as programs write it, such as "tensorflow.compat.v1.estimator".
        leads_to: its target in the bridge.
        replaced: whether stock had the name.
    """

    name: str
    leads_to: str
    replaced: bool


def install(replace: bool = False) -> list[str]:
    """Makes the names of `stock_names` lead to the bridge where stock has none.

    On TF 2.16 and later it also makes TensorFlow load Keras 2, in which legacy programs are
    written, unless the environment says otherwise; so it must come before `tf.keras` is first used.

    Args:
        replace: also replace stock's estimator where there is one, and `TPUClusterResolver`, which
            then does without a TPU.

    Returns:
        The names that now lead to the bridge.

    Raises:
        TooLate: Keras 3 is loaded already.
    """
    use_legacy_keras()
    # A program that calls `install()` itself, and is started by `run`, must not put stock back.
    replace = replace or any(each.leads_to == _IN_PLACE for each in _installed)
    uninstall()
    if replace or not has_stock():
        _install_namespaces()
        _install_modules(replace)
    _install_attributes(replace)
    if replace:
        _install_resolvers()
    return [each.name for each in _installed]


def installed() -> list[Installed]:
    """Returns every name that leads to the bridge now, in the order in which they were set."""
    return list(_installed)


def uninstall() -> None:
    """Puts back everything that `install` changed, except for the choice of Keras."""
    _installed.clear()
    _changes.undo()


@contextlib.contextmanager
def local_resolvers() -> Iterator[None]:
    """While it is open, `TPUClusterResolver` needs no TPU, as after `install(replace=True)`."""
    changes = Changes()
    try:
        for path in stock_names.RESOLVERS:
            owner = public_module(path)
            changes.set(owner, _RESOLVER, load(_IN_PLACE)(getattr(owner, _RESOLVER)))
        yield
    finally:
        changes.undo()


def public_module(path: str) -> ModuleType:
    """Returns a public module of TensorFlow; many are attributes that cannot be imported."""
    first, *rest = path.split(".")
    return functools.reduce(getattr, rest, importlib.import_module(first))


def _install_namespaces() -> None:
    namespace = load(stock_names.NAMESPACE)
    for path in stock_names.PUBLIC_NAMESPACES:
        name = f"{path}.estimator"
        _record(name, namespace.__name__, _changes.set(public_module(path), "estimator", namespace))
        _changes.set(sys.modules, name, namespace)
        for below in stock_names.SUBMODULES:
            module = load(stock_names.namespace_module(below))
            _changes.set(sys.modules, f"{name}.{below}", module)


def _install_modules(replace: bool) -> None:
    modules = {
        path: names for path, names in stock_names.MODULES.items() if replace or _is_free(path)
    }
    for path in sorted(sys.modules):
        if replace and _is_below_root(path):
            _changes.set(sys.modules, path, ABSENT)
    packages = {parent for path in modules for parent in _parents(path) if _is_below_root(parent)}
    # Sorted, a package comes before its modules.
    for path in sorted({*modules, *packages}):
        names = modules.get(path, {})
        module = AliasModule(path, names, is_package=path in packages)
        before = _changes.set(sys.modules, path, module)
        parent, _, name = path.rpartition(".")
        if parent:
            before = _changes.set(importlib.import_module(parent), name, module)
        if names:
            leads_to = dict.fromkeys(target.partition(":")[0] for target in names.values())
            # On 2.15 all these paths are stock's, whether it was imported before or not.
            _record(path, ", ".join(leads_to), path if has_stock() else before)


def _install_attributes(replace: bool) -> None:
    """Sets single names in public modules: the parameters, and the hook of input pipelines."""
    parameters = "tensorflow.compat.v1.tpu.experimental"
    _make_importable(parameters)
    homes = {symbol.name: symbol.home for symbol in stock_names.SYMBOLS}
    names = [(parameters, name) for name in stock_names.PARAMETERS]
    names += [(path, stock_names.INPUT_HOOK) for path in stock_names.INPUT_HOOK_MODULES]
    for path, name in names:
        owner = public_module(path)
        if replace or not hasattr(owner, name):
            before = _changes.set(owner, name, load(homes[name]))
            _record(f"{path}.{name}", homes[name], before)


def _install_resolvers() -> None:
    for path in stock_names.RESOLVERS:
        _make_importable(path)
        owner = public_module(path)
        stand_in = load(_IN_PLACE)(getattr(owner, _RESOLVER))
        _record(f"{path}.{_RESOLVER}", _IN_PLACE, _changes.set(owner, _RESOLVER, stand_in))


def _make_importable(path: str) -> None:
    """Makes `import path` return the public module of TensorFlow that is the attribute.

    It would load the file a second time, and replace the attribute by that.
    """
    for name in (*_parents(path), path):
        if name not in sys.modules:
            _changes.set(sys.modules, name, public_module(name))


def _parents(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def _is_below_root(path: str) -> bool:
    """Whether a path is one of the packages that are replaced as a whole, or below one."""
    return any(f"{path}.".startswith(f"{root}.") for root in stock_names.ROOTS)


def _is_free(path: str) -> bool:
    """Whether TensorFlow has no module of its own at a path."""
    # Newer ones have none; an old tensorflow_estimator beside them cannot be imported.
    return not is_2_15() or importlib.util.find_spec(path) is None


def _record(name: str, leads_to: str, before: Object) -> None:
    _installed.append(Installed(name, leads_to, replaced=before is not ABSENT))
