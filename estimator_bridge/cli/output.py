"""Prints for commands: results on stdout, all else on stderr. Not a command itself.

Names of tables, variables and files come from other people's checkpoints and programs. Control
characters are escaped here, so that one line stays one line.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from estimator_bridge import progress_line
from tf2_engine import plain_text

if TYPE_CHECKING:
    from tf2_engine.types import Object

PREFIX = "estimator-bridge: "


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
    """Returns why a file cannot be written, or None if it can; leaves the file as it was."""
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
    """Discards further output; otherwise Python fails at exit if nobody reads the pipe."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show_source(lines: Iterable[str]) -> None:
    """Prints source, unchanged unless stdout is a terminal: a diff may go to `patch`."""
    if not sys.stdout.isatty():
        sys.stdout.writelines(lines)
        return
    for line in lines:
        text = line.removesuffix("\n")
        sys.stdout.write(plain_text.plain(text, lines=True) + line[len(text) :])
