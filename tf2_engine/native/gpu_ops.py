"""Loads the fused ops for tables on NVIDIA GPUs, and the kernels of the tables' update rules.

NVRTC compiles kernels for each rule and GPU architecture, and the cache stores the kernels.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import pathlib
import tempfile
import threading
from collections.abc import Collection
from contextlib import AbstractContextManager

import tensorflow as tf

from tf2_engine import log
from tf2_engine.native import SOURCES, build, cache, loading, nvrtc
from tf2_engine.types import Object

SOURCE = "gpu/gpu_ops.cc"

_log = log.PlainLogger(__name__)
_LOCK = threading.Lock()
_ADDED: set[tuple[int, str]] = set()
"""Pairs of a GPU's number and a rule whose kernels this GPU has loaded."""


def load(rules: Collection[str]) -> loading.Loaded:
    ops, reason = loading.load()
    if ops is None:
        return loading.Loaded(None, reason)
    try:
        with _LOCK:
            path = _add(sorted(rules))
    except build.CannotBuild as error:
        return loading.Loaded(None, str(error))
    except (tf.errors.OpError, OSError, RuntimeError) as error:
        return loading.Loaded(None, f"the ops for GPUs cannot be loaded: {error}")
    return loading.Loaded(ops, path)


def where_ids_are() -> AbstractContextManager[None]:
    """Places ops that create ids on the host if GPU ops, which read ids on the host, are used."""
    return tf.device("CPU:0") if _ADDED and loading.on_gpu() else contextlib.nullcontext()


def architecture(gpu: Object) -> str:
    details = tf.config.experimental.get_device_details(gpu)
    major, minor = details.get("compute_capability") or (0, 0)
    if major < 7:
        raise build.CannotBuild(
            f"{gpu.name} has compute capability {major}.{minor}, and the kernels need 7.0 or more"
        )
    return f"sm_{major}{minor}"


def _add(rules: Collection[str]) -> str:
    _, path = build.load(SOURCE)
    add = ctypes.CDLL(str(path)).Tf2EngineAddKernels
    add.restype = ctypes.c_char_p
    for gpu in tf.config.get_visible_devices("GPU"):
        number = int(gpu.name.rsplit(":", 1)[-1])
        for rule in rules:
            if (number, rule) in _ADDED:
                continue
            code = _code(architecture(gpu), rule)
            problem = add(number, nvrtc.rule_name(rule).encode(), code)
            if problem is not None:
                raise build.CannotBuild(problem.decode(errors="replace"))
            _ADDED.add((number, rule))
    return str(path)


def _code(arch: str, rule: str) -> bytes:
    parts = [nvrtc.version(), *nvrtc.FLAGS, arch, rule]
    parts += [path.read_text(encoding="utf-8") for path in sorted(SOURCES.rglob("*.h"))]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]
    path = cache.folder() / f"{rule}-{arch}-{digest}.cubin"
    try:
        with cache.locked(path):
            if not cache.has(path):
                _log.info("Compiling the kernels of %s for %s, once.", rule, arch)
                code = nvrtc.compile_kernels(arch, rule)
                handle, temporary = tempfile.mkstemp(suffix=".cubin", dir=path.parent)
                with open(handle, "wb") as file:
                    file.write(code)
                cache.publish(pathlib.Path(temporary), path)
        return path.read_bytes()
    except OSError as error:
        raise build.CannotBuild(f"the cache cannot be written: {error}") from error
