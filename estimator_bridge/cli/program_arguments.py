"""Arguments of commands that run a program, import its spec, or read its checkpoints."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import runpy
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

from estimator_bridge import errors, progress_line
from estimator_bridge.cli import output

_TF1 = (
    "whether {} runs as on TensorFlow 1: with tf.contrib, and without TensorFlow 2's changes "
    "(default: yes, if its source uses a name that only TensorFlow 1 has)"
)
SPEC_HELP = (
    "the program's EmbeddingConfigSpec, or a function without arguments that returns it, as "
    "module:attribute or file.py:name. The module, which is part of your program, is imported"
)


def add_program(parser: argparse.ArgumentParser, subject: str = "the program") -> None:
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
    """Turns an error in a user's program or module into an InvalidInput that names the line."""
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


if TYPE_CHECKING:
    from tf2_engine.types import Object


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--spec", help=SPEC_HELP)
    add_tf1(parser, "the module of --spec")
    table = "a table, and its variable in a name-based checkpoint; repeat the option for each table"
    add("--table", dest="tables", action="append", default=[], metavar="NAME=VARIABLE", help=table)
    kind = "the optimizer of all tables, if there is no spec (default: detected from the slots)"
    add("--optimizer", help=kind)


def keywords(options: argparse.Namespace) -> dict[str, Object]:
    others = ("command", "execute", "json", "tf1")
    values = {name: value for name, value in vars(options).items() if name not in others}
    values["spec"] = load(options.spec, options.tf1) if options.spec else None
    for option, name in (("--table", "tables"), ("--rename", "rename")):
        if name in values:
            values[name] = _pairs(option, values[name])
    if "samples" in values:
        values["samples"] = _numbers("--samples", values["samples"])
    return values


def load(text: str, tf1: bool | None = None) -> Object:
    from estimator_bridge.run import install

    install.install()
    where, _, name = text.rpartition(":")
    if not where or not name:
        raise errors.InvalidInput(f"--spec must be module:attribute or file.py:name, got {text!r}.")
    reading = progress_line.working(f"importing {where}", expected=5.0)
    with failures_of(where), reading, _names(where, tf1):
        try:
            spec = _spec_of(where, name)
        except SystemExit as ended:
            raise errors.InvalidInput(
                f"--spec: {where} exits with {ended.code!r} when it is imported. Put the code "
                'that trains under `if __name__ == "__main__":`.'
            ) from ended
    if not hasattr(spec, "table_to_config_dict") or not hasattr(spec, "feature_columns"):
        raise errors.InvalidInput(f"--spec: {text} is not an EmbeddingConfigSpec, but {spec!r}.")
    return spec


def _spec_of(where: str, name: str) -> Object:
    names = _names_of_file(where) if where.endswith(".py") else _names_of_module(where)
    if name not in names:
        raise errors.InvalidInput(f"--spec: {where} has no {name!r}.")
    spec = names[name]
    is_function = callable(spec) and not hasattr(spec, "table_to_config_dict")
    return spec() if is_function else spec


def _names(where: str, tf1: bool | None) -> AbstractContextManager[bool]:
    from estimator_bridge.run.tf1 import detection, running

    path, folder = where, os.path.dirname(os.path.abspath(where))
    if not where.endswith(".py"):
        folder = os.getcwd()
        path = detection.file_of(where, detection.folders_of_imports(folder)) or ""
    return running.as_needed(path, tf1, output.tell, _names_of_tf1_in_graph, folder)


@contextlib.contextmanager
def _names_of_tf1_in_graph(script: str) -> Iterator[None]:
    import tensorflow as tf

    from estimator_bridge.run.tf1 import running

    # TensorFlow 2's behavior stays on: the commands rely on it, and turning it off is final.
    with running.names_of_tf1(script), tf.Graph().as_default():
        yield


def _pairs(option: str, arguments: Sequence[str]) -> dict[str, str]:
    values = {}
    for text in arguments:
        name, _, value = text.partition("=")
        if not name or not value:
            raise errors.InvalidInput(f"{option} must be NAME=VALUE, got {text!r}.")
        values[name] = value
    return values


def _numbers(option: str, arguments: Sequence[str]) -> dict[str, int]:
    pairs = _pairs(option, arguments)
    for name, value in pairs.items():
        if not value.isdecimal():
            raise errors.InvalidInput(f"{option} must be NAME=NUMBER, got {name}={value!r}.")
    return {name: int(value) for name, value in pairs.items()}


def _names_of_file(path: str) -> Mapping[str, Object]:
    if not os.path.isfile(path):
        raise errors.InvalidInput(f"--spec: there is no file {path!r}.")
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    return runpy.run_path(path, run_name="__spec__")


def _names_of_module(module: str) -> Mapping[str, Object]:
    sys.path.insert(0, os.getcwd())
    try:
        return vars(importlib.import_module(module))
    except ModuleNotFoundError as error:
        # The module may exist, but import another module that does not.
        if error.name and f"{module}.".startswith(f"{error.name}."):
            raise errors.InvalidInput(f"--spec: {error}.") from error
        raise
