"""Compiles the kernels for GPUs with NVRTC, which `tensorflow[and-cuda]` installs.

The optimizers' rules include a few standard headers, which NVRTC lacks; it gets reduced versions.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import pathlib
import re
from collections.abc import Sequence

from tf2_engine.native import SOURCES
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
    nvrtc = library()
    headers = dict(_STANDARD)
    for path in sorted(SOURCES.rglob("*.h")):
        headers[path.relative_to(SOURCES).as_posix()] = path.read_text(encoding="utf-8")
    program = ctypes.c_void_p()
    texts, names = (_strings(list(each)) for each in (headers.values(), headers))
    source = f'#include "gpu/kernels.h"\n#include "rules/optimizers/{rule}.h"\n'.encode()
    made = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), source, b"kernels.cu", len(headers), texts, names
    )
    if made:
        raise CannotBuild(f"NVRTC does not start: error {made}")
    try:
        flags = [f"--gpu-architecture={arch}", *FLAGS]
        if nvrtc.nvrtcCompileProgram(program, len(flags), _strings(flags)):
            lines = _output(nvrtc, program, "ProgramLog").decode(errors="replace").splitlines()
            complaint = next((line for line in lines if "error" in line), "no message")
            raise CannotBuild(f"NVRTC cannot compile the kernels for {arch}: {complaint}")
        return _output(nvrtc, program, "CUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def rule_name(rule: str) -> str:
    text = (SOURCES / "rules" / "optimizers" / f"{rule}.h").read_text(encoding="utf-8")
    found = re.search(r"^TF2_ENGINE_RULE\((\w+)\)", text, re.MULTILINE)
    assert found is not None, rule
    return found[1]


@functools.cache
def library() -> Object:
    for path in (*_in_packages(), *_NAMES):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise CannotBuild(
        "there is no NVRTC to compile kernels for the GPU; `pip install tensorflow[and-cuda]` "
        "installs it"
    )


def version() -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def _in_packages() -> list[str]:
    spec = importlib.util.find_spec("nvidia")
    places = [] if spec is None else (spec.submodule_search_locations or [])
    found = [path for place in places for path in pathlib.Path(place).glob("*/lib/libnvrtc.so.*")]
    return [str(path) for path in sorted(found, key=lambda path: path.suffix, reverse=True)]


def _output(nvrtc: Object, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    data = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, data)
    return data.raw


def _strings(values: Sequence[str]) -> Object:
    return (ctypes.c_char_p * len(values))(*[value.encode() for value in values])
