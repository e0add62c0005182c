"""Distinguishes a user's code from packages, and finds the user's line that led to an error."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Sequence

import tf2_engine

_OF_PACKAGES = tuple(
    os.path.realpath(path) + os.sep
    for path in (
        *(sysconfig.get_paths()[name] for name in ("purelib", "platlib", "stdlib", "platstdlib")),
        os.path.dirname(os.path.dirname(__file__)),
        os.path.dirname(tf2_engine.__file__),
    )
)


def is_of_program(filename: str) -> bool:
    return "<" not in filename and not os.path.realpath(filename).startswith(_OF_PACKAGES)


def line_of_error(error: BaseException) -> str | None:
    if isinstance(error, SyntaxError) and error.filename:
        return place(error.filename, error.lineno)
    frames: Sequence[traceback.FrameSummary] = traceback.extract_tb(error.__traceback__)
    of_program = [frame for frame in frames if is_of_program(frame.filename)]
    return place(of_program[-1].filename, of_program[-1].lineno) if of_program else None


def place(filename: str, line: int | None) -> str:
    return f"{filename}, line {line}" if line else filename


def described(error: BaseException) -> str:
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    kind, text = type(error).__name__, " ".join(message.split())
    return f"{kind}: {text}" if text else kind
