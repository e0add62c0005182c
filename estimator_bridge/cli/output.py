"""Prints the output of commands: results on stdout, all else on stderr. Not a command itself.

Names come from other people's checkpoints and programs, so control characters are escaped here.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from estimator_bridge import errors, progress_line
from tf2_engine import plain_text

if TYPE_CHECKING:
    from tf2_engine.types import Object

PREFIX = "estimator-bridge: "
TRACEBACK = "ESTIMATOR_BRIDGE_TRACEBACK"
"""The environment variable that makes commands print the traceback of an internal error."""
_EXTRAS = {"libcst": "[migrate]"}
_PACKAGES = (
    *("absl", "google", "google_crc32c", "keras", "ml_dtypes", "numpy", "tensorboard"),
    *("tensorflow", "tf_keras", "tf_slim", *_EXTRAS),
)
"""Packages that pip installs with the bridge. With `pip install --no-deps`, some may be missing."""


def show(*lines: object) -> None:
    for line in lines:
        print(plain_text.plain(line), flush=True)


def show_json(value: Mapping[str, Object] | Sequence[Object], *, on_stderr: bool = False) -> None:
    print(as_json(value, indent=2), file=sys.stderr if on_stderr else sys.stdout)


def as_json(value: Mapping[str, Object] | Sequence[Object], *, indent: int) -> str:
    return json.dumps(plain_text.plain_values(value), indent=indent, allow_nan=False)


def write_json(path: str, value: Mapping[str, Object] | Sequence[Object]) -> None:
    pathlib.Path(path).write_text(as_json(value, indent=1) + "\n", encoding="utf-8")


def tell(sentence: object) -> None:
    progress_line.end_line()
    print(f"{PREFIX}{plain_text.plain(sentence)}", file=sys.stderr)


def note(*lines: object) -> None:
    for line in lines:
        print(plain_text.plain(line), file=sys.stderr)


def why_unwritable(path: str) -> str | None:
    exists = os.path.exists(path)
    try:
        with open(path, "ab"):
            pass
    except OSError as error:
        return error.strerror
    if not exists:
        os.remove(path)
    return None


def close_stdout() -> None:
    """Discards further output. Otherwise, Python fails at exit if nobody reads the pipe."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show_source(lines: Iterable[str]) -> None:
    """Prints source; escapes it only on a terminal, because `patch` cannot read an escaped diff."""
    if not sys.stdout.isatty():
        sys.stdout.writelines(lines)
        return
    for line in lines:
        text = line.removesuffix("\n")
        sys.stdout.write(plain_text.plain(text, lines=True) + line[len(text) :])


def cause_of(command: str, error: Exception) -> object:
    if isinstance(error, errors.EngineError):
        return error
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if name in _PACKAGES:
        wanted = f"estimator-bridge{_EXTRAS.get(name, '')}"
        needed = "protobuf" if name == "google" else name
        return f"{command} needs {needed}, which is not installed. Type: pip install '{wanted}'"
    if os.environ.get(TRACEBACK):
        note(*"".join(traceback.format_exception(error)).splitlines())
    if isinstance(error, OSError) and error.strerror:
        where = " ".join(str(name) for name in (error.filename, error.filename2) if name)
        return f"{command}: {where + ': ' if where else ''}{error.strerror}."
    if isinstance(error, RecursionError):
        return f"{command}: the source is nested too deeply to be read. Split its expressions."
    if isinstance(error, MemoryError):
        return f"{command}: there is not enough memory, or the source is nested too deeply."
    return (
        f"{command}: internal error: {type(error).__name__}: {error}. This is a defect of the "
        f"command: please report it, with the output that {TRACEBACK}=1 adds."
    )
