"""The folder of compiled libraries: checks its owner, and that its libraries are intact.

A library is code that this process executes. Therefore the folder and the library must belong to
this user or to root, and nobody else may be able to write to them. A file next to each library
contains its digest.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import pathlib
import stat
from collections.abc import Iterator

from tf2_engine import errors, log

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
        fcntl.flock(
            file, fcntl.LOCK_EX
        )  # Closing the file releases the lock, even if the process is killed.
        yield


def has(path: pathlib.Path) -> bool:
    """Whether a library exists and is intact. Logs a warning if it is damaged."""
    if not path.exists():
        return False
    _check(path.parent)
    _check(path)
    try:
        written = _beside(path).read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        return False
    if written == _digest(path):
        return True
    _log.warning("%s is damaged, and is compiled again.", path)
    return False


def publish(written: pathlib.Path, path: pathlib.Path) -> None:
    written.chmod(stat.S_IRWXU)
    digest = written.with_suffix(_DIGEST)
    digest.write_text(f"{_digest(written)}\n", encoding="ascii")
    # A process that reads between these two calls finds a wrong digest and waits for the lock.
    os.replace(digest, _beside(path))
    os.replace(written, path)


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


def _digest(path: pathlib.Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
