"""Arguments that the commands have in common which run a user's program, or a part of one."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from types import TracebackType

from estimator_bridge import errors
from estimator_bridge.cli import output

_TF1 = (
    "whether {} sees TensorFlow 1: tf.contrib, and without what TensorFlow 2 changed "
    "(default: if its source names what only TensorFlow 1 has)"
)


def configure(parser: argparse.ArgumentParser, subject: str = "the program") -> None:
    """Adds `--tf1`, which is True, False, or None: the program's source tells; and `-m`.

    Args:
        subject: what sees TensorFlow 1, for the help.
    """
    action = argparse.BooleanOptionalAction
    parser.add_argument("--tf1", action=action, default=None, help=_TF1.format(subject))
    add_module(parser)


def add_module(parser: argparse.ArgumentParser) -> None:
    """Adds `-m`, before the name of a program."""
    module = "the program is a module, named as for `python -m`"
    parser.add_argument("-m", action="store_true", dest="is_module", help=module)


def positive(text: str) -> int:
    """Returns the number that an argument is; it is the `type` of arguments that count."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive whole number")
    return int(text)


@contextlib.contextmanager
def failures_of(path: str) -> Iterator[None]:
    """Makes an error of a user's program or module an InvalidInput that says where it comes from.

    Args:
        path: its file, or a name for it.
    """
    try:
        yield
    except errors.EngineError:
        raise
    except Exception as error:
        lines = [
            f"line {frame.lineno}"
            for frame in traceback.extract_tb(error.__traceback__)
            if os.path.abspath(frame.filename) == os.path.abspath(path)
        ]
        where = ", ".join([path, *lines[-1:]])
        raise errors.InvalidInput(f"{where}: {type(error).__name__}: {error}") from error


def tell_failure() -> None:
    """Prints the traceback of the error that is handled as Python would, without our own frames."""
    kind, error, trace = sys.exc_info()
    of_program = trace
    while of_program is not None and not _is_of_program(of_program):
        of_program = of_program.tb_next
    lines = traceback.format_exception(kind, error, of_program)
    output.note("".join(lines).rstrip("\n"))


def _is_of_program(trace: TracebackType) -> bool:
    """Returns whether a frame is neither of the bridge nor of what Python runs a program with."""
    name = trace.tb_frame.f_globals.get("__name__", "")
    return name.partition(".")[0] not in ("contextlib", "estimator_bridge", "importlib", "runpy")
