"""`estimator-bridge`: finds the command and runs it. Imports nothing heavy."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import pkgutil
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import NoReturn

import estimator_bridge
from estimator_bridge import cli, quiet_start
from estimator_bridge.cli import output
from tf2_engine import plain_text

FAILED = 2
"""The exit status of a command that could not do what was asked, or got wrong arguments."""
INTERRUPTED = 130
_HANDLE_SIGNALS = ("run", "serve")
"""Commands that run a user's program and leave the handling of signals to it."""
_NUMBERS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
"""The environment variable for oneDNN. TensorFlow reads this variable when it is loaded."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(plain_text.plain(message))


def parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Makes the parser of command lines, and the parser of each command.

    A command is a module of this package that defines `execute`, and `configure` if the command
    has arguments. The module's docstring is the command's help.
    """
    parser = _Parser(
        prog="estimator-bridge",
        description="Runs, migrates and verifies legacy TPUEstimator programs on TensorFlow 2.",
    )
    parser.add_argument("--version", action="version", version=estimator_bridge.__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    by_name: dict[str, argparse.ArgumentParser] = {}
    for each in pkgutil.iter_modules(cli.__path__):
        module = importlib.import_module(f"{cli.__name__}.{each.name}")
        if not hasattr(module, "execute"):
            continue
        name, description = each.name.replace("_", "-"), module.__doc__ or ""
        summary = description.partition("\n")[0]
        # Arguments after a program belong to it, even if they begin like an option of the bridge.
        by_name[name] = commands.add_parser(
            name, help=summary, description=description, allow_abbrev=False
        )
        if hasattr(module, "configure"):
            module.configure(by_name[name])
        by_name[name].set_defaults(execute=module.execute)
    return parser, by_name


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status.

    The status is 0 if the command did what was asked, 2 if it could not, 130 after Ctrl-C, and 143
    after SIGTERM. `verify` and similar commands return 1 for "no"; `run` returns the program's
    status.
    """
    options = parsers()[0].parse_args(arguments)
    quiet_start.quieten()
    is_program = options.command in _HANDLE_SIGNALS
    if is_program:
        choose_allocator()
    try:
        with contextlib.nullcontext() if is_program else terminated_in_order():
            return int(options.execute(options) or 0)
    except KeyboardInterrupt as interrupt:
        output.tell(str(interrupt) or "Ctrl-C.")
        return INTERRUPTED
    except BrokenPipeError:
        output.close_stdout()
        return FAILED
    except Exception as error:
        output.tell(output.cause_of(options.command, error))
        return FAILED


@contextlib.contextmanager
def terminated_in_order() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into SystemExit(128 + signal number), so that commands clean up."""
    # A signal that is ignored or already has a handler stays as it is.
    in_main_thread = threading.current_thread() is threading.main_thread()
    usual = [each for each in _NUMBERS if signal.getsignal(each) is signal.SIG_DFL]
    numbers = usual if in_main_thread else []
    try:
        for number in numbers:
            signal.signal(number, _exit)
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def choose_allocator() -> None:
    if "tensorflow" not in sys.modules and _is_server(os.environ.get("TF_CONFIG", "")):
        os.environ.setdefault(ONEDNN, "0")


def _is_server(tf_config: str) -> bool:
    try:
        return bool(json.loads(tf_config)["task"]["type"] == "ps")
    except (ValueError, KeyError, TypeError):
        return False
