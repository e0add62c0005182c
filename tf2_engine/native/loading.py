"""Decides whether the fused host ops are used, and loads them once per process.

If a driver has no setting of its own, $ESTIMATOR_BRIDGE_NATIVE decides:

    auto    (default) the ops are used if possible; otherwise the log says why not
    0       the ops are not used
    1       the ops are used; raises an error if that is not possible
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from tf2_engine import errors, log
from tf2_engine.native import build
from tf2_engine.types import Object

SETTING = "ESTIMATOR_BRIDGE_NATIVE"
SOURCE = "host/host_ops.cc"

_NAMES = (
    *("Occurrences", "Lookup", "Update"),
    *("RawLookup", "RawUpdate", "CheckBatches"),  # For batches that are on a GPU.
    *("Route", "Serve", "Combine", "Send", "Receive"),  # For tables on parameter servers.
)
_OPS = frozenset(f"Tf2Engine{name}" for name in _NAMES)

_VALUES = {"auto": None, "0": False, "1": True}

_log = log.PlainLogger(__name__)
_LOCK = threading.Lock()


class Loaded(NamedTuple):
    """The ops' module, or None.

    `reason` says why there is no module. If there is one, it is the library's path.
    """

    ops: Object
    reason: str


def host_ops(native: bool | None = None) -> Object:
    def load_for_cpus() -> Loaded:
        if _wanted(native) is None and on_gpu():
            return Loaded(None, "there is a GPU, but these native ops run only on CPUs")
        return load()

    return usable(native, load_for_cpus)


def usable(native: bool | None, load: Callable[[], Loaded]) -> Object:
    wanted = _wanted(native)
    if wanted is False:
        return None
    loaded = load()
    if loaded.ops is None and wanted:
        raise errors.InvalidSpec(
            f"The native ops are required (native=True, or {SETTING}=1), but cannot be used: "
            f"{loaded.reason}. Fix that, or remove the setting to run on TensorFlow's ops."
        )
    if loaded.ops is None:
        _warn_once(loaded.reason)
    return loaded.ops


def load() -> Loaded:
    with _LOCK:
        return _load()


def load_if_built() -> None:
    """Loads the ops, for graphs that contain them. Does nothing if the library is not compiled."""
    with contextlib.suppress(build.CannotBuild):
        if _wanted(None) is not False and build.existing(SOURCE) is not None:
            load()


def is_host_op(op: str) -> bool:
    return op in _OPS


def on_gpu() -> bool:
    if not tf.config.get_visible_devices("GPU"):
        return False
    return "CPU" not in tf.zeros([]).device.upper()


def setting() -> str:
    value = os.environ.get(SETTING, "").strip().lower() or "auto"
    if value not in _VALUES:
        raise errors.InvalidSpec(f"${SETTING} must be auto, 0 or 1, got {value!r}.")
    return value


def _wanted(native: bool | None) -> bool | None:
    return _VALUES[setting()] if native is None else native


@functools.cache
def _load() -> Loaded:
    try:
        ops, path = build.load(SOURCE)
    except build.CannotBuild as error:
        return Loaded(None, str(error))
    except (tf.errors.OpError, OSError, RuntimeError) as error:
        return Loaded(None, f"they cannot be loaded (`estimator-bridge build-native`): {error}")
    # Gradients end at activations, as on a TPU.
    for op in _OPS:
        tf.no_gradient(op)
    return Loaded(ops, str(path))


@functools.cache
def _warn_once(reason: str) -> None:
    _log.warning("Embeddings run on TensorFlow's ops, which are slower, because %s.", reason)
