"""The folders of libraries in the cache and the wheel. Checks their owners and contents.

A library is code that this process executes. Therefore the cache and the library must belong to
this user or to root, and nobody else may have write access. A file next to each library contains
the library's digest.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pathlib
import platform
import stat
from collections.abc import Iterator

from tf2_engine import errors, log
from tf2_engine.native import SOURCES

VARIABLE = "ESTIMATOR_BRIDGE_CACHE"
"""The environment variable with the folder of the libraries."""

_DIGEST = ".sha256"
_ROOT = 0

_log = log.PlainLogger(__name__)


class CannotBuild(errors.EngineError, RuntimeError):
    """A library cannot be built or trusted. The message says why."""


def folder() -> pathlib.Path:
    named = os.environ.get(VARIABLE)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    path = pathlib.Path(named) if named else pathlib.Path(base, "estimator-bridge")
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise CannotBuild(
            f"this user has no home folder to keep compiled ops in: set ${VARIABLE} to a folder"
        ) from error


@contextlib.contextmanager
def locked(path: pathlib.Path) -> Iterator[None]:
    path.parent.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
    _check(path.parent)
    with open(path.with_suffix(".lock"), "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield  # Closing the file releases the lock, even if the process is killed.


def has(path: pathlib.Path) -> bool:
    if not path.exists():
        return False
    _check(path.parent)
    _check(path)
    try:
        if _is_intact(path):
            return True
    except FileNotFoundError:
        return False
    _log.warning("%s is damaged, and is compiled again.", path)
    return False


def publish(written: pathlib.Path, path: pathlib.Path) -> None:
    written.chmod(stat.S_IRWXU)
    # A process that reads between these two calls finds a wrong digest and waits for the lock.
    os.replace(write_digest(written), _beside(path))
    os.replace(written, path)


def write_digest(path: pathlib.Path) -> pathlib.Path:
    digest = _beside(path)
    digest.write_text(f"{_digest(path)}\n", encoding="ascii")
    return digest


def _check(path: pathlib.Path) -> None:
    status = path.stat()
    ours = status.st_uid in (os.geteuid(), _ROOT)
    if ours and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return
    mode = stat.S_IMODE(status.st_mode)
    whose = f"belongs to uid {status.st_uid}" if not ours else f"has mode {mode:o}"
    way_out = "`chmod go-w` it" if ours else "remove it"
    raise CannotBuild(
        f"{path} {whose}, so that other users may put code into it: {way_out}, or set ${VARIABLE} "
        "to another folder"
    )


def _beside(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(path.name + _DIGEST)


def _is_intact(path: pathlib.Path) -> bool:
    written = _beside(path).read_text(encoding="ascii", errors="replace")
    return written.strip() == _digest(path)


def _digest(path: pathlib.Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


FOLDER = SOURCES / "libraries"
"""The folder of the wheel's libraries. A source tree does not have this folder."""

LEVELS = {"x86_64": "x86-64-v3", "aarch64": "armv8-a"}
"""The instruction sets of the wheel's libraries: x86 since about 2014, and all 64-bit ARM."""

_INSTRUCTIONS = {
    "x86_64": frozenset(
        {
            *("abm", "avx", "avx2", "bmi1", "bmi2", "cx16", "f16c", "fma", "lahf_lm", "movbe"),
            *("popcnt", "sse4_1", "sse4_2", "ssse3", "xsave"),
        }
    ),
    "aarch64": frozenset[str](),
}


def find_prebuilt(name: str) -> pathlib.Path | None:
    path = FOLDER / name
    if not path.exists() or not runs_here():
        return None
    with contextlib.suppress(OSError):
        if _is_intact(path):
            return path
    _log.warning("%s, a library of the wheel, is damaged and is not used.", path)
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
