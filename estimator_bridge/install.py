"""Puts the bridge where legacy programs look for stock's names.

`install` fills names that this TensorFlow lacks; it replaces what is there only when asked.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

from estimator_bridge import errors

_ESTIMATOR = "estimator_bridge.estimator"
_PARAMETERS = (
    "AdagradParameters",
    "AdamParameters",
    "FtrlParameters",
    "StochasticGradientDescentParameters",
)
"""The parameter classes that stock exports under `tf.compat.v1.tpu.experimental`."""

_ABSENT = object()
_installed: list[_Change] = []


@dataclasses.dataclass(frozen=True)
class _Change:
    """One name that was set, and how to set it back.

    Attributes:
        owner: a module, or `sys.modules`.
        name: attribute or key.
        before: what was there, or a mark for nothing.
    """

    owner: Any
    name: str
    before: Any

    def undo(self) -> None:
        """Puts back what was there."""
        if self.before is not _ABSENT:
            _set(self.owner, self.name, self.before)
        elif isinstance(self.owner, ModuleType):
            delattr(self.owner, self.name)
        else:
            del self.owner[self.name]


def install(replace: bool = False) -> list[str]:
    """Makes `tf.estimator`, `tf.compat.v1.estimator` and the `*Parameters` classes available.

    On TF 2.16 and later it also asks for Keras 2, in which legacy programs are written, unless
    the environment says otherwise; so it must come before `tf.keras` is first used.

    Args:
        replace: also replace stock's estimator where there is one.

    Returns:
        The names that now lead to the bridge.

    Raises:
        TooLate: Keras 3 is loaded already.
    """
    use_legacy_keras()
    import tensorflow as tf

    estimator = importlib.import_module(_ESTIMATOR)
    has_stock = importlib.util.find_spec("tensorflow_estimator") is not None and _is_2_15()
    told = []
    if replace or not has_stock:
        for path in ("tensorflow", "tensorflow.compat.v1"):
            _change(importlib.import_module(path), "estimator", estimator)
            told.append(f"{path}.estimator")
            for name, module in _modules(estimator):
                _change(sys.modules, f"{path}.{name}", module)
    parameters = importlib.import_module("estimator_bridge.legacy.parameters")
    experimental = tf.compat.v1.tpu.experimental
    for name in _PARAMETERS:
        if not hasattr(experimental, name):
            _change(experimental, name, getattr(parameters, name))
            told.append(f"tensorflow.compat.v1.tpu.experimental.{name}")
    return told


def uninstall() -> None:
    """Puts back everything that `install` changed, but for the choice of Keras."""
    while _installed:
        _installed.pop().undo()


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


def _modules(estimator: ModuleType) -> list[tuple[str, ModuleType]]:
    return [
        ("estimator", estimator),
        ("estimator.tpu", estimator.tpu),
        ("estimator.tpu.experimental", estimator.tpu.experimental),
    ]


def _change(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, ModuleType):
        before = vars(owner).get(name, _ABSENT)
    else:
        before = owner.get(name, _ABSENT)
    _set(owner, name, value)
    _installed.append(_Change(owner, name, before))


def _set(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, ModuleType):
        setattr(owner, name, value)
    else:
        owner[name] = value
