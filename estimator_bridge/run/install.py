"""Makes legacy programs find the bridge under the names that they import."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import operator
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from types import ModuleType
from typing import NamedTuple

from estimator_bridge.run import stock_names
from estimator_bridge.run.keras_choice import is_2_15, use_legacy_keras
from estimator_bridge.run.namespaces import AliasModule, LeftOutModules, load
from tf2_engine.types import Object

_ABSENT = object()  # marks a name that does not exist

_changes = contextlib.ExitStack()  # closing it undoes the changes
_installed: list[Installed] = []


class Installed(NamedTuple):
    """A name that programs use, and the object of the bridge to which the name leads."""

    name: str
    leads_to: str
    replaced: bool  # whether the name led to an object of stock before


def install(replace: bool = False) -> list[str]:
    """Adds those of stock's names that the installed TensorFlow lacks, and returns these names.

    Legacy programs need Keras 2. On TF 2.16 and later, this function also makes TensorFlow load
    Keras 2, unless TF_USE_LEGACY_KERAS is set. Call it before the first use of `tf.keras`.

    Args:
        replace: also replace stock's estimator if it is installed, and make `TPUClusterResolver`
            work without a TPU.

    Raises:
        TooLate: Keras 3 is already loaded.
    """
    use_legacy_keras()
    # `run` has already replaced stock. A program that calls `install()` itself must not undo that.
    stand_in = stock_names.RESOLVER_STAND_IN
    replace = replace or any(each.leads_to == stand_in for each in _installed)
    uninstall()
    if replace or not has_stock():
        _install_namespaces()
        _install_modules(replace)
        _install_moved_names()
    _install_attributes(replace)
    if replace:
        _install_stand_ins()
    return [each.name for each in _installed]


def installed() -> list[Installed]:
    """Lists all names that come from the bridge, in the order in which they were added."""
    return list(_installed)


def uninstall() -> None:
    """Undoes everything that `install` changed, except for the choice of Keras."""
    _installed.clear()
    _changes.close()


@contextlib.contextmanager
def local_resolvers() -> Iterator[None]:
    with contextlib.ExitStack() as changes:
        for path in stock_names.RESOLVERS:
            stand_in = load(stock_names.RESOLVER_STAND_IN)
            resolver = getattr(public_module(path), stock_names.RESOLVER)
            _change(public_module(path), stock_names.RESOLVER, stand_in(resolver), changes)
        yield


def has_stock() -> bool:
    # `importlib.util.find_spec` would find the modules that `install` added.
    return is_2_15() and PathFinder.find_spec("tensorflow_estimator") is not None


def public_module(path: str) -> ModuleType:
    module: ModuleType = load(path.replace(".", ":", 1))
    return module


def _install_namespaces() -> None:
    for path, target in stock_names.ESTIMATOR_PARENTS.items():
        namespace = load(target)
        _make_importable(path)
        _change_name(path, "estimator", target, namespace)
        _change(sys.modules, f"{path}.estimator", namespace)
        for below in stock_names.SUBMODULES:
            module = load(stock_names.namespace_module(below))
            _change(sys.modules, f"{path}.estimator.{below}", module)


def _install_modules(replace: bool) -> None:
    modules = {
        path: names
        for path, names in stock_names.MODULES.items()
        # Newer versions of TensorFlow lack stock, and cannot import an old tensorflow_estimator.
        if replace or not is_2_15() or importlib.util.find_spec(path) is None
    }
    for path in sorted(sys.modules):
        if replace and _is_below_root(path):
            _change(sys.modules, path, _ABSENT)
    packages = {
        parent for path in modules for parent in stock_names.parents(path) if _is_below_root(parent)
    }
    # Paths are sorted, so that a package comes before its modules.
    for path in sorted({*modules, *packages}):
        names = modules.get(path, {})
        stock = _importable(path) if path in stock_names.KEPT else None
        module = AliasModule(path, names, is_package=path in packages, stock=stock)
        before = _change(sys.modules, path, module)
        parent, _, name = path.rpartition(".")
        if parent:
            before = _change(importlib.import_module(parent), name, module)
        if names:
            leads_to = dict.fromkeys(target.partition(":")[0] for target in names.values())
            # On 2.15 stock has all of these paths, imported or not.
            replaced = has_stock() or before is not _ABSENT
            _installed.append(Installed(path, ", ".join(leads_to), replaced))

    finder = LeftOutModules(stock_names.ROOTS)
    sys.meta_path.insert(0, finder)
    _changes.callback(sys.meta_path.remove, finder)


def _importable(path: str) -> ModuleType | None:
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        return None


def _install_attributes(replace: bool) -> None:
    parameters = "tensorflow.compat.v1.tpu.experimental"
    _make_importable(parameters)
    homes = {symbol.name: symbol.home for symbol in stock_names.SYMBOLS}
    names = [(parameters, name) for name in stock_names.PARAMETERS]
    names += [(path, stock_names.INPUT_HOOK) for path in stock_names.INPUT_HOOK_MODULES]
    for path, name in names:
        if replace or not hasattr(public_module(path), name):
            _change_name(path, name, homes[name], load(homes[name]))


def _install_moved_names() -> None:
    for path, name, home in stock_names.MOVED:
        module = importlib.import_module(path)
        if not hasattr(module, name):
            _change(module, name, load(home))
            _installed.append(Installed(f"{path}.{name}", home, replaced=False))
    for path, names in stock_names.MOVED_MODULES.items():
        if _importable(path) is None:
            parent, _, name = path.rpartition(".")
            moved = AliasModule(path, names, is_package=True)
            _change(sys.modules, path, moved)
            _change(importlib.import_module(parent), name, moved)


def _install_stand_ins() -> None:
    for paths, name, stand_in in stock_names.STAND_INS:
        make = load(stand_in)
        for path in paths:
            _make_importable(path)
            _change_name(path, name, stand_in, make(getattr(public_module(path), name)))


def _change_name(path: str, name: str, leads_to: str, value: Object) -> None:
    before = _change(public_module(path), name, value)
    _installed.append(Installed(f"{path}.{name}", leads_to, replaced=before is not _ABSENT))


def _change(
    owner: ModuleType | dict[str, ModuleType],
    name: str,
    value: Object,
    changes: contextlib.ExitStack = _changes,
) -> Object:
    """Sets an attribute of a module, or an entry of `sys.modules`. Closing `changes` restores it.

    Returns the previous value. `_ABSENT` means that there is no value; setting it deletes the name.
    """
    values = vars(owner) if isinstance(owner, ModuleType) else owner
    before = values.get(name, _ABSENT)
    names: Object = values.get("__all__")
    listed = list(names) if isinstance(names, list) else None
    _set(owner, name, value)

    def undo() -> None:
        _set(owner, name, before)
        if listed is not None:
            # When a name is set on a wrapped module of TensorFlow, the module adds it to `__all__`.
            names[:] = listed

    changes.callback(undo)
    return before


def _set(owner: Object, name: str, value: Object) -> None:
    is_module = isinstance(owner, ModuleType)
    if value is _ABSENT:
        (delattr if is_module else operator.delitem)(owner, name)
    else:
        (setattr if is_module else operator.setitem)(owner, name, value)


def _make_importable(path: str) -> None:
    for name in (*stock_names.parents(path), path):
        if name not in sys.modules:
            _change(sys.modules, name, public_module(name))


def _is_below_root(path: str) -> bool:
    return any(f"{path}.".startswith(f"{root}.") for root in stock_names.ROOTS)
