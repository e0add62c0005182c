"""Distinguishes a user's code from packages, and finds the user's line that led to an error."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Sequence

import tf2_engine


def _as_written_and_real(path: str) -> tuple[str, str]:
    """Returns both forms of a path: some installers fill site-packages with symbolic links."""
    return os.path.abspath(path), os.path.realpath(path)


_OF_PACKAGES = tuple(
    form + os.sep
    for path in (
        *(sysconfig.get_paths()[name] for name in ("purelib", "platlib", "stdlib", "platstdlib")),
        os.path.dirname(os.path.dirname(__file__)),
        os.path.dirname(tf2_engine.__file__),
    )
    for form in _as_written_and_real(path)
)


def is_of_program(filename: str) -> bool:
    forms = _as_written_and_real(filename)
    return "<" not in filename and not any(form.startswith(_OF_PACKAGES) for form in forms)


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
