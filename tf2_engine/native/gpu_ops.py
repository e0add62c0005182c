"""Loads the fused ops for tables on NVIDIA GPUs, and compiles kernels for the tables' update rules.

NVRTC, which `tensorflow[and-cuda]` installs, compiles kernels for each rule and GPU architecture
into the cache. NVRTC lacks the standard headers that rules include, so it gets reduced headers.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import pathlib
import re
import tempfile
import threading
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager

import tensorflow as tf

from tf2_engine import log
from tf2_engine.native import SOURCES, build, cache, loading
from tf2_engine.native.cache import CannotBuild
from tf2_engine.types import Object

FLAGS = (
    "--std=c++17",
    "--device-as-default-execution-space",
    # Every operation rounds separately, as on the CPU.
    *("--fmad=false", "--prec-div=true", "--prec-sqrt=true"),
)

_STANDARD = {
    "array": """#pragma once
namespace std {
template <class T, unsigned long N> struct array {
  T data[N ? N : 1];
  constexpr unsigned long size() const { return N; }
};
template <class T, class... U> array(T, U...) -> array<T, 1 + sizeof...(U)>;
}""",
    "cmath": """#pragma once
namespace std {
inline float sqrt(float x) { return ::sqrtf(x); }
inline float pow(float x, float y) { return ::powf(x, y); }
inline float fabs(float x) { return ::fabsf(x); }
}""",
    "cstdint": """#pragma once
using int64_t = long long;
using uint16_t = unsigned short;
using uint32_t = unsigned;
using uint64_t = unsigned long long;""",
    "limits": """#pragma once
namespace std {
template <class T> struct numeric_limits;
template <> struct numeric_limits<float> {
  static constexpr float infinity() { return __builtin_bit_cast(float, 0x7f800000); }
};
}""",
    "utility": """#pragma once
namespace std {
template <class T, class U> T exchange(T& at, U next) { T old = at; at = next; return old; }
}""",
}
"""Reduced versions of the C++ library's headers, with the parts that kernels use."""

_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so")


def compile_kernels(arch: str, rule: str) -> bytes:
    library = nvrtc()
    headers = dict(_STANDARD)
    for path in sorted(SOURCES.rglob("*.h")):
        headers[path.relative_to(SOURCES).as_posix()] = path.read_text(encoding="utf-8")
    program = ctypes.c_void_p()
    texts, names = (_strings(list(each)) for each in (headers.values(), headers))
    source = f'#include "gpu/kernels.h"\n#include "rules/optimizers/{rule}.h"\n'.encode()
    made = library.nvrtcCreateProgram(
        ctypes.byref(program), source, b"kernels.cu", len(headers), texts, names
    )
    if made:
        raise CannotBuild(f"NVRTC does not start: error {made}")
    try:
        flags = [f"--gpu-architecture={arch}", *FLAGS]
        if library.nvrtcCompileProgram(program, len(flags), _strings(flags)):
            lines = _output(library, program, "ProgramLog").decode(errors="replace").splitlines()
            complaint = next((line for line in lines if "error" in line), "no message")
            raise CannotBuild(f"NVRTC cannot compile the kernels for {arch}: {complaint}")
        return _output(library, program, "CUBIN")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def rule_name(rule: str) -> str:
    text = (SOURCES / "rules" / "optimizers" / f"{rule}.h").read_text(encoding="utf-8")
    found = re.search(r"^TF2_ENGINE_RULE\((\w+)\)", text, re.MULTILINE)
    assert found is not None, rule
    return found[1]


@functools.cache
def nvrtc() -> Object:
    for path in (*_in_packages(), *_NAMES):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise CannotBuild(
        "there is no NVRTC to compile kernels for the GPU; `pip install tensorflow[and-cuda]` "
        "installs it"
    )


def nvrtc_version() -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def _in_packages() -> list[str]:
    spec = importlib.util.find_spec("nvidia")
    places = [] if spec is None else (spec.submodule_search_locations or [])
    found = [path for place in places for path in pathlib.Path(place).glob("*/lib/libnvrtc.so.*")]
    return [str(path) for path in sorted(found, key=lambda path: path.suffix, reverse=True)]


def _output(library: Object, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    data = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{what}")(program, data)
    return data.raw


def _strings(values: Sequence[str]) -> Object:
    return (ctypes.c_char_p * len(values))(*[value.encode() for value in values])


SOURCE = "gpu/gpu_ops.cc"

_log = log.PlainLogger(__name__)
_LOCK = threading.Lock()
_ADDED: set[tuple[int, str]] = set()
"""Pairs (GPU number, rule): this GPU has loaded the kernels of this rule."""


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
    """Places new ops on the host if GPU ops are in use, because GPU ops read ids on the host."""
    return tf.device("CPU:0") if _ADDED and loading.on_gpu() else contextlib.nullcontext()


def architecture(gpu: Object) -> str:
    details = tf.config.experimental.get_device_details(gpu)
    major, minor = details.get("compute_capability") or (0, 0)
    if major < 7:
        raise build.CannotBuild(
            f"{gpu.name} has compute capability {major}.{minor}, but the kernels need 7.0 or higher"
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
            problem = add(number, rule_name(rule).encode(), code)
            if problem is not None:
                raise build.CannotBuild(problem.decode(errors="replace"))
            _ADDED.add((number, rule))
    return str(path)


def _code(arch: str, rule: str) -> bytes:
    parts = [nvrtc_version(), *FLAGS, arch, rule]
    parts += [path.read_text(encoding="utf-8") for path in sorted(SOURCES.rglob("*.h"))]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]
    path = cache.folder() / f"{rule}-{arch}-{digest}.cubin"
    try:
        with cache.locked(path):
            if not cache.has(path):
                _log.info("Compiling the kernels of %s for %s, once.", rule, arch)
                code = compile_kernels(arch, rule)
                handle, temporary = tempfile.mkstemp(suffix=".cubin", dir=path.parent)
                with open(handle, "wb") as file:
                    file.write(code)
                cache.publish(pathlib.Path(temporary), path)
        return path.read_bytes()
    except OSError as error:
        raise build.CannotBuild(f"the cache cannot be written: {error}") from error
