"""Decides whether the fused host ops are used, and loads them once per process.

$ESTIMATOR_BRIDGE_NATIVE says it for drivers that do not say it themselves:

    auto (the default)  used where they can be; where not, one line in the log says why
    0                   not used
    1                   used; that they cannot be is an error
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from typing import Any, NamedTuple

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.native import build

SETTING = "ESTIMATOR_BRIDGE_NATIVE"
SOURCE = "host/host_ops.cc"

_log = logging.getLogger(__name__)
_LOCK = threading.Lock()


class Loaded(NamedTuple):
    """The outcome of loading.

    Attributes:
        ops: the module of the ops, or None.
        reason: where they are from, or why there are none.
    """

    ops: Any
    reason: str


def host_ops(native: bool | None = None) -> Any:
    """Returns the module of the fused host ops, or None where TensorFlow's ops are to be used.

    Args:
        native: whether they are to be used; None leaves it to the environment.

    Raises:
        InvalidSpec: they are asked for and cannot be used, or the setting has another value.
    """
    asked = _setting() if native is None else native
    if asked is False:
        return None
    loaded = Loaded(None, _GPU) if asked is None and has_gpu() else load()
    if loaded.ops is None and asked:
        raise errors.InvalidSpec(
            f"The native host ops are asked for (native=True, or {SETTING}=1), but cannot be used: "
            f"{loaded.reason}. Leave the choice open, or mend that."
        )
    if loaded.ops is None:
        _say_once(loaded.reason)
    return loaded.ops


def load() -> Loaded:
    """Compiles the ops, if need be, and loads them; the outcome is the same ever after."""
    with _LOCK:
        return _load()


def has_gpu() -> bool:
    """Whether TensorFlow may put tables on a GPU, where the native ops have no kernels."""
    return bool(tf.config.get_visible_devices("GPU"))


def setting() -> str:
    """Returns what the environment says, in words."""
    return {None: "auto", True: "1", False: "0"}[_setting()]


_GPU = "there is a GPU, and the native ops run on CPUs"


@functools.cache
def _load() -> Loaded:
    try:
        path = build.library(SOURCE)
    except build.CannotBuild as error:
        return Loaded(None, str(error))
    try:
        ops = tf.load_op_library(str(path))
    except (tf.errors.OpError, OSError, RuntimeError) as error:
        return Loaded(None, f"{path} cannot be loaded (`estimator-bridge build-native`): {error}")
    # Gradients end at activations, as they do on a TPU.
    for name in ("Tf2EngineOccurrences", "Tf2EngineLookup", "Tf2EngineUpdate"):
        tf.no_gradient(name)
    return Loaded(ops, str(path))


@functools.cache
def _say_once(reason: str) -> None:
    _log.warning("Embeddings run on TensorFlow's ops, which are slower, because %s.", reason)


def _setting() -> bool | None:
    value = os.environ.get(SETTING, "").strip().lower() or "auto"
    known = {"auto": None, "0": False, "1": True}
    if value not in known:
        raise errors.InvalidSpec(f"${SETTING} must be auto, 0 or 1, got {value!r}.")
    return known[value]
