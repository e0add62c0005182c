"""The libraries that a wheel brings along: whether one of them fits this process and processor.

The name of a library holds a digest of TensorFlow's version and ABI, of the flags and of the
sources that it was made of; see `build`. So one under the right name fits this TensorFlow and these
sources, whatever else is in the folder. What a name does not say is whether this processor has the
instructions, and whether the file is what was written: a digest of it lies beside it.
"""

from __future__ import annotations

import contextlib
import hashlib
import pathlib
import platform

from tf2_engine import log
from tf2_engine.native import SOURCES

FOLDER = SOURCES / "libraries"
"""The folder of the libraries; a tree of sources has none."""

LEVELS = {"x86_64": "x86-64-v3", "aarch64": "armv8-a"}
"""The instruction set of the libraries by machine, as compilers name it.

That of x86 is what processors have since about 2014, that of ARM what all of 64 bits have.
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
"""The processor flags that each instruction set needs, as Linux lists them."""

DIGEST = ".sha256"

_log = log.PlainLogger(__name__)


def find(name: str) -> pathlib.Path | None:
    """Returns the library of a name; None if there is none that this processor can execute whole.

    A line in the log says so if it is damaged.
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
    """Returns whether this processor has the instructions of the libraries for its machine."""
    needed = _INSTRUCTIONS.get(platform.machine())
    return needed is not None and processor_flags() >= needed


def processor_flags() -> frozenset[str]:
    """Returns the flags of this processor, as Linux lists them; an empty set if it does not."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            key, _, value = line.partition(":")
            if key.strip() == "flags":
                return frozenset(value.split())
    return frozenset()
