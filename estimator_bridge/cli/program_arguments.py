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
    """Adds `--tf1` and `-m`; `subject` is what sees TensorFlow 1, for the help."""
    add_tf1(parser, subject)
    add_module(parser)


def add_tf1(parser: argparse.ArgumentParser, subject: str) -> None:
    """Adds `--tf1`, which is True, False, or None: the program's source tells."""
    action = argparse.BooleanOptionalAction
    parser.add_argument("--tf1", action=action, default=None, help=_TF1.format(subject))


def add_module(parser: argparse.ArgumentParser) -> None:
    """Adds `-m`, before the name of a program."""
    module = "the program is a module, named as for `python -m`"
    parser.add_argument("-m", action="store_true", dest="is_module", help=module)


def positive(text: str) -> int:
    """Returns the number that an argument is; it is the `type` of arguments that count."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


@contextlib.contextmanager
def failures_of(path: str) -> Iterator[None]:
    """Makes an error of a user's program or module an InvalidInput that says where it comes from.

    An error that comes up where no code of a program runs is a defect of the command, and stays as
    it is.

    Args:
        path: its file, or the name of a module, which may be one of an installed package.
    """
    from estimator_bridge.run import program_lines

    try:
        yield
    except errors.EngineError:
        raise
    except Exception as error:
        where = program_lines.line_of_error(error)
        if where is None and os.path.exists(path):
            raise
        raise errors.InvalidInput(f"{where or path}: {program_lines.described(error)}") from error


def tell_failure() -> None:
    """Prints the traceback of the error that is handled as Python would, without our own frames."""
    kind, error, trace = sys.exc_info()
    of_program = trace
    while of_program is not None and not _is_of_program(of_program):
        of_program = of_program.tb_next
    lines = traceback.format_exception(kind, error, of_program)
    output.note(*"".join(lines).splitlines())


def _is_of_program(trace: TracebackType) -> bool:
    """Returns whether a frame is neither of the bridge nor of what Python runs a program with."""
    name = trace.tb_frame.f_globals.get("__name__", "")
    return name.partition(".")[0] not in ("contextlib", "estimator_bridge", "importlib", "runpy")
