"""Checks the arguments of `verify` before anything slow runs. Not a command itself."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
from collections.abc import Iterator

from estimator_bridge import errors
from estimator_bridge.cli import output
from estimator_bridge.run.script import program_of
from estimator_bridge.verify.sides import SIDES

_PROBE = """
import json
from estimator_bridge.run import install, keras_choice
print(json.dumps([keras_choice.tensorflow_version(), install.has_stock()]))
"""
"""Prints what an interpreter has, without importing TensorFlow."""
_SECONDS = 120


def refusals(options: argparse.Namespace) -> Iterator[str]:
    """Yields why `verify` cannot do what its options say."""
    yield from _of_programs(options)
    if options.against and options.against_checkpoint:
        yield "side B is either a program (--against) or a checkpoint (--against-checkpoint)."
    for option in ("--against", "--against-checkpoint"):
        if option in options.arguments:
            yield f"{option} comes before the program: what is after it is the program's own."
    yield from _of_numbers(options)
    yield from _of_files(options)
    for option in ("json", "html"):
        reason = getattr(options, option) and output.why_unwritable(getattr(options, option))
        if reason:
            yield f"--{option} {getattr(options, option)}: it cannot be written: {reason}."
    yield from _of_interpreters(options)


def _of_programs(options: argparse.Namespace) -> Iterator[str]:
    for option, program in (("", options.script), ("--against ", options.against)):
        try:
            if program is not None:
                program_of(program, options.is_module)
        except errors.InvalidInput as error:
            yield f"{option}{error}"


def _of_numbers(options: argparse.Namespace) -> Iterator[str]:
    for option in ("steps", "every"):
        number = getattr(options, option)
        if number is not None and number < 1:
            yield f"--{option} {number}: must be 1 or more."
    if options.search < 0:
        yield f"--search {options.search:g}: must be a number of seconds, 0 or more."


def _of_files(options: argparse.Namespace) -> Iterator[str]:
    if options.keep and os.path.exists(options.keep):
        yield f"--keep {options.keep}: it exists already. Name a folder that does not."
    if options.examples and not os.path.isfile(options.examples):
        yield f"--examples {options.examples}: there is no such file."
    for option in ("begin_from", "against_checkpoint"):
        path = getattr(options, option)
        if path is None:
            continue
        name = f"--{option.replace('_', '-')} {path}"
        if os.path.isdir(path):
            if not os.path.isfile(os.path.join(path, "checkpoint")):
                yield f"{name}: the folder has no file `checkpoint` that names the latest one."
        elif not os.path.isfile(f"{path.removesuffix('.index')}.index"):
            yield f"{name}: there is no such checkpoint, as {path}.index is not there."


def _of_interpreters(options: argparse.Namespace) -> Iterator[str]:
    sides = [("b", options.b, options.python_b)] * (not options.against_checkpoint)
    if not options.watch:
        sides.insert(0, ("a", options.a, options.python_a))
    for letter, side, python in sides:
        version, has_stock, why_not = _what_it_has(python)
        if why_not:
            yield f"--python-{letter} {python}: {why_not}."
        elif SIDES[side].stock and not has_stock:
            yield (
                f"--{letter} {side}: {python} has TensorFlow {version} without stock's estimator. "
                f"Use --{letter} bridge, or give as --python-{letter} an interpreter "
                "with TensorFlow 2.15 and tensorflow-estimator (the extra 'legacy')."
            )


def _what_it_has(python: str) -> tuple[str, bool, str]:
    """Returns an interpreter's TensorFlow, whether it has stock, and why it is unusable."""
    if shutil.which(python) is None:
        return "", False, "there is no such program that can be run. Give the path of a Python"
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
        reason = "".join(last) or "it is not a Python"
        return "", False, f"no side can run in it: {reason}. Install estimator-bridge there"
    return ".".join(map(str, version)), has_stock, ""
