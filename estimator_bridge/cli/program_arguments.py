"""Arguments of commands that run a user's program or import a part of it."""

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
    "whether {} runs as on TensorFlow 1: with tf.contrib, and without TensorFlow 2's changes "
    "(default: yes, if its source uses a name that only TensorFlow 1 has)"
)


def configure(parser: argparse.ArgumentParser, subject: str = "the program") -> None:
    add_tf1(parser, subject)
    add_module(parser)


def add_tf1(parser: argparse.ArgumentParser, subject: str) -> None:
    action = argparse.BooleanOptionalAction
    parser.add_argument("--tf1", action=action, default=None, help=_TF1.format(subject))


def add_module(parser: argparse.ArgumentParser) -> None:
    module = "the program is given as the name of a module, as for `python -m`"
    parser.add_argument("-m", action="store_true", dest="is_module", help=module)


def positive(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


@contextlib.contextmanager
def failures_of(path: str) -> Iterator[None]:
    """Turns an error of a user's program or module into an InvalidInput with the failing line."""
    from estimator_bridge.run import program_lines

    try:
        yield
    except errors.EngineError:
        raise
    except Exception as error:
        where = program_lines.line_of_error(error)
        if where is None and os.path.exists(path):
            raise  # a defect of the command
        raise errors.InvalidInput(f"{where or path}: {program_lines.described(error)}") from error


def tell_failure() -> None:
    """Prints the current traceback as Python would, without the bridge's frames."""
    kind, error, trace = sys.exc_info()
    of_program = trace
    while of_program is not None and not _is_of_program(of_program):
        of_program = of_program.tb_next
    lines = traceback.format_exception(kind, error, of_program)
    output.note(*"".join(lines).splitlines())


def _is_of_program(trace: TracebackType) -> bool:
    name = trace.tb_frame.f_globals.get("__name__", "")
    return name.partition(".")[0] not in ("contextlib", "estimator_bridge", "importlib", "runpy")
