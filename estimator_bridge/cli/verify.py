"""Runs a program on two engines, from one start and on the same batches, and compares them."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

from estimator_bridge.cli import verify_watch
from estimator_bridge.verify.sides import SIDES

if TYPE_CHECKING:
    from estimator_bridge.verify.result import Result


# The metavar, or None for a flag, and the help.
_OPTIONS = {
    "--against": (
        "PROGRAM",
        "side B runs this program, with the same arguments: such as the output of `migrate`",
    ),
    "--against-checkpoint": (
        "CHECKPOINT",
        "side B is a checkpoint of another program, such as a TF2 one, after the same steps",
    ),
    "--begin-from": ("CHECKPOINT", "begin from this (default: the initial values of side A)"),
    "--own-input": (
        None,
        "side B reads its own input (default: it gets the batches of side A)",
    ),
    "--free-run": (
        None,
        "side B runs on from its own state (default: from side A's after every compared step)",
    ),
    "--no-measure": (
        None,
        "do not train a third time to measure how the model amplifies rounding errors",
    ),
    "--watch": (
        None,
        "run side B alone, and check in every step what must hold without a second side",
    ),
    "--examples": (
        "TFRECORDS",
        "query exported models with these (default: the first batches of the training)",
    ),
    "--json": ("FILE", "write the whole result as JSON"),
    "--html": ("FILE", "write a page to read and to sign"),
    "--keep": ("DIR", "keep the recordings and logs there; it must not exist"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    for letter, default in (("a", "stock"), ("b", "bridge")):
        parser.add_argument(
            f"--{letter}",
            choices=tuple(SIDES),
            default=default,
            help=f"side {letter.upper()} ({default}): stock's estimator or the bridge's, as the "
            "program says, or with use_tpu as named; -native and -ops choose the host's ops",
        )
        parser.add_argument(
            f"--python-{letter}",
            metavar="PATH",
            default=sys.executable,
            help=f"the interpreter of side {letter.upper()}, such as one with another TensorFlow",
        )
    parser.add_argument("--steps", type=int, default=20, help="steps of training (20)")
    every = "compare variables every N steps (1; with pipelining 5), in one device loop"
    parser.add_argument("--every", type=int, metavar="N", help=every)
    for option, (metavar, text) in _OPTIONS.items():
        if metavar is None:
            parser.add_argument(option, action="store_true", help=text)
        else:
            parser.add_argument(option, metavar=metavar, help=text)
    parser.add_argument("script", help="the program")
    own = "the program's own arguments, as they are"
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=own)


def execute(options: argparse.Namespace) -> int:
    """Compares; returns 0 if the sides are equal, 1 if not, 2 if there is no verdict."""
    from estimator_bridge import errors

    refusal = next(itertools.chain(_refusals(options), verify_watch.refusals(options)), None)
    if refusal is None:
        try:
            return verify_watch.watch(options) if options.watch else _compare(options)
        except errors.EngineError as error:
            refusal = str(error)
    print(f"estimator-bridge: {refusal}", file=sys.stderr)
    return 2


def _refusals(options: argparse.Namespace) -> Iterator[str]:
    for program in (options.script, options.against):
        if program is not None and not os.path.isfile(program):
            yield f"there is no program {program!r}."
    if options.against and options.against_checkpoint:
        yield "side B is either a program (--against) or a checkpoint (--against-checkpoint)."
    for option in ("--against", "--against-checkpoint"):
        if option in options.arguments:
            yield f"{option} comes before the program: what is after it is the program's own."
    if options.keep and os.path.exists(options.keep):
        yield f"--keep {options.keep}: it exists already."
    if options.steps < 1 or (options.every is not None and options.every < 1):
        yield f"--steps {options.steps} and --every {options.every} must be positive."


def _compare(options: argparse.Namespace) -> int:
    from estimator_bridge.progress_line import ProgressLine
    from estimator_bridge.verify import procedure
    from estimator_bridge.verify.record.processes import ProcessRecorder, SideProgram
    from estimator_bridge.verify.record.recording import A, B

    script_b = options.against or options.script
    programs = {
        A: SideProgram(options.a, options.script, options.python_a),
        B: SideProgram(options.b, script_b, options.python_b),
    }
    progress = ProgressLine(lambda phase, done, total: f"{phase}: step {done} of {total}")
    record = ProcessRecorder(programs, options.arguments, options.steps, options.every, progress)
    how = procedure.Options(
        begin_from=options.begin_from and os.path.abspath(options.begin_from),
        own_input=options.own_input,
        measure=not options.no_measure,
        examples=options.examples,
        free_run=options.free_run,
        checkpoint=options.against_checkpoint,
        pythons={role: program.python for role, program in programs.items()},
    )
    with tempfile.TemporaryDirectory() as temporary:
        directory = pathlib.Path(options.keep or temporary).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        result = procedure.side_by_side(record, directory, how, progress)
    _report(result, options)
    return 0 if result.equal else 1


def _report(result: Result, options: argparse.Namespace) -> None:
    from estimator_bridge.verify.report.page import page

    print(result)
    if options.json:
        report = json.dumps(result.as_dict(), indent=1, allow_nan=False)
        pathlib.Path(options.json).write_text(report + "\n")
    if options.html:
        compared = [options.script, options.against, options.against_checkpoint]
        names = " against ".join(os.path.basename(path) for path in compared if path)
        title = " ".join([names, *options.arguments])
        pathlib.Path(options.html).write_text(page(result, title))
