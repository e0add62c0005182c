"""Checks the arguments of `verify` before anything slow runs. Not a command itself."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

from estimator_bridge import errors
from estimator_bridge.cli import output
from estimator_bridge.run import keras_choice
from estimator_bridge.run.script import program_of
from estimator_bridge.verification.sides import SIDES

_PROBE = """
import json
from estimator_bridge.run import install, keras_choice
print(json.dumps([keras_choice.tensorflow_version(), install.has_stock()]))
"""
_SECONDS = 120
_OF_PROGRAMS = (
    "against",
    "against_checkpoint",
    "begin_from",
    "own_input",
    "free_run",
    "no_measure",
    "watch",
    "examples",
    "keep",
)
_OF_TWO_SIDES = ("against", "against_checkpoint", "own_input", "examples", "html")


def refusals(options: argparse.Namespace) -> Iterator[str]:
    for name in _OF_TWO_SIDES:
        if options.watch and getattr(options, name):
            option = f"--{name.replace('_', '-')}"
            yield f"--watch runs only side B, but {option} is for two sides. Leave one of them out."
    if options.against_recording:
        yield from _of_recordings(options)
        return
    if options.script is None:
        yield "verify: no program is given. Name one, or two recordings with --against-recording."
        return
    yield from _of_two_sides(options)
    yield from _of_numbers(options)
    if options.search < 0:
        yield f"--search {options.search:g} must be a number of seconds, 0 or more."
    yield from _of_files(options)
    yield from _of_reports(options)
    if not options.watch:
        yield from _of_interpreter("a", options.a, options.python_a, "--python-a")
    if not options.against_checkpoint:
        yield from _of_interpreter("b", options.b, options.python_b, "--python-b")


def _of_two_sides(options: argparse.Namespace) -> Iterator[str]:
    yield from _of_program("", options.script, options.is_module)
    if options.against:
        yield from _of_program("--against ", options.against, options.is_module)
    if options.against and options.against_checkpoint:
        yield (
            "side B is either a program (--against) or a checkpoint (--against-checkpoint). Leave "
            "one of them out."
        )
    for option in ("--against", "--against-checkpoint"):
        if option in options.arguments:
            yield f"{option} comes before the program; arguments after the program are its own."


def _of_recordings(options: argparse.Namespace) -> Iterator[str]:
    given = [
        f"--{name.replace('_', '-')}"
        for name in _OF_PROGRAMS
        if getattr(options, name) not in (None, False)
    ]
    if options.script is not None:
        given.insert(0, options.script)
    if given:
        yield (
            f"--against-recording runs no program, so {given[0]} has no effect. Leave one of them "
            "out."
        )
    yield from _of_reports(options)


def _of_reports(options: argparse.Namespace) -> Iterator[str]:
    for option in ("json", "html"):
        reason = getattr(options, option) and output.why_unwritable(getattr(options, option))
        if reason:
            yield f"--{option} {getattr(options, option)} cannot be written: {reason}."


def refusals_of_record(options: argparse.Namespace) -> Iterator[str]:
    yield from _of_program("", options.script, options.is_module)
    yield from _of_numbers(options)
    if os.path.exists(options.output):
        yield f"--output {options.output} already exists. Name a new folder."
    if options.begin_from:
        yield from _of_checkpoint("begin_from", options.begin_from)
    yield from _of_interpreter("side", options.side, options.python, "--python")


def _of_program(option: str, program: str, is_module: bool) -> Iterator[str]:
    try:
        program_of(program, is_module)
    except errors.InvalidInput as error:
        yield f"{option}{error}"


def _of_numbers(options: argparse.Namespace) -> Iterator[str]:
    for option in ("steps", "every"):
        number = getattr(options, option)
        if number is not None and number < 1:
            yield f"--{option} {number} must be 1 or more."


def _of_files(options: argparse.Namespace) -> Iterator[str]:
    if options.keep and os.path.exists(options.keep):
        yield f"--keep {options.keep} already exists. Name a new folder."
    if options.examples and not os.path.isfile(options.examples):
        yield f"--examples {options.examples}: there is no such file."
    for option in ("begin_from", "against_checkpoint"):
        if getattr(options, option) is not None:
            yield from _of_checkpoint(option, getattr(options, option))


def _of_checkpoint(option: str, path: str) -> Iterator[str]:
    name = f"--{option.replace('_', '-')} {path}"
    if os.path.isdir(path):
        if not os.path.isfile(os.path.join(path, "checkpoint")):
            yield f"{name}: the folder has no file `checkpoint` that names its latest checkpoint."
    elif not os.path.isfile(f"{path.removesuffix('.index')}.index"):
        yield f"{name}: there is no such checkpoint, because {path}.index does not exist."


def _of_interpreter(option: str, side: str, python: str, option_of_python: str) -> Iterator[str]:
    if python == sys.executable:
        keras_choice.tensorflow_version()  # raises a ModuleNotFoundError if there is none
    version, has_stock, why_not = _what_it_has(python)
    if why_not:
        yield f"{option_of_python} {python}: {why_not}."
    elif SIDES[side].stock and not has_stock:
        yield (
            f"--{option} {side}: {python} has TensorFlow {version} without stock's estimator. Use "
            f"--{option} bridge, or give {option_of_python} an interpreter with TensorFlow 2.15 "
            "and tensorflow-estimator (the extra 'legacy')."
        )


def _what_it_has(python: str) -> tuple[str, bool, str]:
    if shutil.which(python) is None:
        return "", False, "there is no such executable file. Give the path of a Python interpreter"
    command = [python, "-c", _PROBE]
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_SECONDS
        )
        version, has_stock = json.loads(ran.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", False, f"it does not run: {error}"
    except ValueError:
        last = [line for line in ran.stderr.splitlines() if line.strip()][-1:]
        reason = "".join(last) or "it is not a Python interpreter"
        return "", False, f"no side can run in it: {reason}. Install estimator-bridge there"
    return ".".join(map(str, version)), has_stock, ""
