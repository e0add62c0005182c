"""Finds an intact library in the wheel for this process and processor.

The name of the library contains a digest of TensorFlow's version and ABI, the flags and the
sources.
"""

from __future__ import annotations

import contextlib
import hashlib
import pathlib
import platform

from tf2_engine import log
from tf2_engine.native import SOURCES

FOLDER = SOURCES / "libraries"
"""The folder of the libraries. A source tree does not have this folder."""

LEVELS = {"x86_64": "x86-64-v3", "aarch64": "armv8-a"}
"""Maps each kind of machine to the instruction set of its libraries, as compilers name it.

x86 processors have this instruction set since about 2014, and all 64-bit ARM processors have
theirs.
"""

_INSTRUCTIONS = {
    "x86_64": frozenset(
        {
            *("abm", "avx", "avx2", "bmi1", "bmi2", "cx16", "f16c", "fma", "lahf_lm", "movbe"),
            *("popcnt", "sse4_1", "sse4_2", "ssse3", "xsave"),
        }
    ),
    "aarch64": frozenset[str](),
}
"""The processor flags that each instruction set needs, with the names that Linux uses."""

DIGEST = ".sha256"

_log = log.PlainLogger(__name__)


def find(name: str) -> pathlib.Path | None:
    """Finds an intact library by name that this processor can execute, or returns None.

    Logs a warning if the library is damaged.
    """
    path = FOLDER / name
    if not path.exists() or not runs_here():
        return None
    with contextlib.suppress(OSError):
        written = path.with_name(path.name + DIGEST).read_text(encoding="ascii", errors="replace")
        if written.strip() == hashlib.sha256(path.read_bytes()).hexdigest():
            return path
    _log.warning("%s, which the wheel brought along, is damaged, and is not used.", path)
    return None


def runs_here() -> bool:
    needed = _INSTRUCTIONS.get(platform.machine())
    return needed is not None and processor_flags() >= needed


def processor_flags() -> frozenset[str]:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key.strip() == "flags":
                return frozenset(value.split())
    return frozenset()
