"""Puts the bridge where legacy programs look for stock's names.

`install` fills names that this TensorFlow lacks; it replaces what is there only when asked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any, NamedTuple

from estimator_bridge import errors
from estimator_bridge.run import stock_names
from estimator_bridge.run.alias_module import AliasModule, load

_ESTIMATOR = "estimator_bridge.estimator"
_RESOLVER = "TPUClusterResolver"
_IN_PLACE = "estimator_bridge.run.cluster_resolver:in_place_of"

_ABSENT = object()
_changes: list[_Change] = []
_installed: list[Installed] = []


class Installed(NamedTuple):
    """A name that leads to the bridge.

    Attributes:
        name: what programs write, such as "tensorflow.compat.v1.estimator".
        leads_to: what they get.
        replaced: whether something of stock's was there.
    """

    name: str
    leads_to: str
    replaced: bool


@dataclasses.dataclass(frozen=True)
class _Change:
    """One name that was set, and how to set it back.

    Attributes:
        owner: a module, or `sys.modules`.
        name: attribute or key.
        before: what was there, or a mark for nothing.
        listed: the owner's `__all__` as it was, or a mark for none.
    """

    owner: Any
    name: str
    before: Any
    listed: Any

    def undo(self) -> None:
        """Puts back what was there."""
        _set(self.owner, self.name, self.before)
        if self.listed is not _ABSENT:
            # TensorFlow's wrapped modules list what is set on them.
            self.owner.__all__[:] = self.listed


def install(replace: bool = False) -> list[str]:
    """Makes the names of `stock_names` lead to the bridge where nothing else is there.

    On TF 2.16 and later it also asks for Keras 2, in which legacy programs are written, unless
    the environment says otherwise; so it must come before `tf.keras` is first used.

    Args:
        replace: also replace stock's estimator where there is one, and `TPUClusterResolver`,
            which then does without a TPU.

    Returns:
        The names that now lead to the bridge.

    Raises:
        TooLate: Keras 3 is loaded already.
    """
    use_legacy_keras()
    # A program that installs by itself, and is started by `run`, takes nothing back.
    replaced_before = any(change.name == _RESOLVER for change in _changes)
    replace = replace or replaced_before
    uninstall()
    if replace or not has_stock():
        _install_namespaces()
        _install_modules(replace)
    _install_parameters(replace)
    _install_input_hook(replace)
    if replace:
        _install_resolvers()
    return [installed.name for installed in _installed]


def installed() -> list[Installed]:
    """Returns every name that leads to the bridge now, in the order in which they were set."""
    return list(_installed)


def uninstall() -> None:
    """Puts back everything that `install` changed, but for the choice of Keras."""
    _installed.clear()
    while _changes:
        _changes.pop().undo()


def has_stock() -> bool:
    """Returns whether stock's estimator is there and fits this TensorFlow."""
    # Not `importlib.util.find_spec`, which would find what `install` put there.
    return _is_2_15() and PathFinder.find_spec("tensorflow_estimator") is not None


@contextlib.contextmanager
def local_resolvers() -> Iterator[None]:
    """While it is open, `TPUClusterResolver` needs no TPU, as after `install(replace=True)`."""
    owners = [_public(path) for path in stock_names.RESOLVERS]
    before = [getattr(owner, _RESOLVER) for owner in owners]
    for owner, stock in zip(owners, before, strict=True):
        setattr(owner, _RESOLVER, load(_IN_PLACE)(stock))
    try:
        yield
    finally:
        for owner, stock in zip(owners, before, strict=True):
            setattr(owner, _RESOLVER, stock)


def use_legacy_keras() -> None:
    """Asks TensorFlow for Keras 2 where it would load Keras 3.

    Raises:
        TooLate: `tf.keras` is Keras 3 already.
    """
    if _is_2_15() or os.environ.get("TF_USE_LEGACY_KERAS") is not None:
        return
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    import tensorflow as tf

    # TensorFlow decides when the name is first used; from then on it is decided.
    if not tf.keras.layers.Layer.__module__.startswith("tf_keras."):
        raise errors.TooLate(
            "tf.keras is Keras 3 already, and legacy programs are written in Keras 2. Call "
            "`install` before tf.keras is first used, or set the environment variable "
            "TF_USE_LEGACY_KERAS=1."
        )


def tensorflow_version() -> tuple[int, int]:
    """Returns the version of the installed TensorFlow without importing it."""
    for name in ("tensorflow", "tensorflow-cpu", "tf-nightly"):
        try:
            major, minor = importlib.metadata.version(name).split(".")[:2]
        except importlib.metadata.PackageNotFoundError:
            continue
        return int(major), int(minor)
    import tensorflow as tf

    major, minor = tf.__version__.split(".")[:2]
    return int(major), int(minor)


def _is_2_15() -> bool:
    return tensorflow_version() < (2, 16)


def _install_namespaces() -> None:
    namespace = load(_ESTIMATOR)
    for path in stock_names.PUBLIC_NAMESPACES:
        name = f"{path}.estimator"
        _note(name, _ESTIMATOR, _change(_public(path), "estimator", namespace))
        _change(sys.modules, name, namespace)
        for below in stock_names.SUBMODULES:
            _change(sys.modules, f"{name}.{below}", load(f"{_ESTIMATOR}.{below}"))


def _install_modules(replace: bool) -> None:
    modules = {
        path: names for path, names in stock_names.MODULES.items() if replace or _is_free(path)
    }
    for path in sorted(sys.modules):
        if replace and _root(path):
            _change(sys.modules, path, _ABSENT)
    packages = {parent for path in modules for parent in _parents(path) if _root(parent)}
    # Sorted, a package comes before what is below it.
    for path in sorted({*modules, *packages}):
        names = modules.get(path, {})
        module = AliasModule(path, names, is_package=path in packages)
        before = _change(sys.modules, path, module)
        parent, _, name = path.rpartition(".")
        if parent:
            before = _change(importlib.import_module(parent), name, module)
        if names:
            leads_to = dict.fromkeys(target.partition(":")[0] for target in names.values())
            # On 2.15 all these paths are stock's, whether it was imported before or not.
            _note(path, ", ".join(leads_to), path if has_stock() else before)


def _install_parameters(replace: bool) -> None:
    path = "tensorflow.compat.v1.tpu.experimental"
    owner = _public_also_by_path(path)
    for name in stock_names.PARAMETERS:
        if replace or not hasattr(owner, name):
            target = f"estimator_bridge.legacy.parameters:{name}"
            _note(f"{path}.{name}", target, _change(owner, name, load(target)))


def _install_input_hook(replace: bool) -> None:
    name = stock_names.INPUT_HOOK
    for path in stock_names.INPUT_HOOK_MODULES:
        owner = _public(path)
        if replace or not hasattr(owner, name):
            target = f"estimator_bridge.hooks.input_pipeline:{name}"
            _note(f"{path}.{name}", target, _change(owner, name, load(target)))


def _install_resolvers() -> None:
    for path in stock_names.RESOLVERS:
        owner = _public_also_by_path(path)
        stand_in = load(_IN_PLACE)(getattr(owner, _RESOLVER))
        _note(f"{path}.{_RESOLVER}", _IN_PLACE, _change(owner, _RESOLVER, stand_in))


def _public(path: str) -> Any:
    """Returns a public module of TensorFlow; many are attributes that cannot be imported."""
    first, *rest = path.split(".")
    return functools.reduce(getattr, rest, importlib.import_module(first))


def _public_also_by_path(path: str) -> Any:
    """Returns a public module of TensorFlow, which `import path` then finds, too.

    It would load the file a second time, and put that in the place of the attribute.
    """
    for name in (*_parents(path), path):
        if name not in sys.modules:
            _change(sys.modules, name, _public(name))
    return _public(path)


def _parents(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def _root(path: str) -> str | None:
    """Returns the root that a path is, or is below; None if it is below none."""
    return next((root for root in stock_names.ROOTS if f"{path}.".startswith(f"{root}.")), None)


def _is_free(path: str) -> bool:
    """Returns whether TensorFlow has no module of its own at a path."""
    # Newer ones have none; an old tensorflow_estimator beside them cannot be imported.
    return not _is_2_15() or importlib.util.find_spec(path) is None


def _note(name: str, leads_to: str, before: Any) -> None:
    _installed.append(Installed(name, leads_to, replaced=before is not _ABSENT))


def _change(owner: Any, name: str, value: Any) -> Any:
    """Sets an attribute of a module, or a key; returns what was there, or a mark for nothing."""
    values = vars(owner) if isinstance(owner, ModuleType) else owner
    before = values.get(name, _ABSENT)
    listed = _ABSENT
    if isinstance(owner, ModuleType) and isinstance(values.get("__all__"), list):
        listed = list(values["__all__"])
    _set(owner, name, value)
    _changes.append(_Change(owner, name, before, listed))
    return before


def _set(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, ModuleType):
        if value is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, value)
    elif value is _ABSENT:
        del owner[name]
    else:
        owner[name] = value
