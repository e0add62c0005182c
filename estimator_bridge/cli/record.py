"""Records a program's training run in an open format, to replay it in another framework."""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import sys
from typing import TYPE_CHECKING

from estimator_bridge import errors
from estimator_bridge.cli import output, program_arguments, verify_checks
from estimator_bridge.readable_sizes import readable
from estimator_bridge.verification.sides import SIDES

if TYPE_CHECKING:
    from estimator_bridge.recording.files import Recording


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    folder = "the folder of the recording; it must not exist"
    add("--output", "-o", required=True, metavar="DIR", help=folder)
    side = "the engine that runs the program, as for the sides of `verify` (stock)"
    add("--side", choices=tuple(SIDES), default="stock", help=side)
    python = "the Python that runs the program, for example one with another TensorFlow"
    add("--python", metavar="PATH", default=sys.executable, help=python)
    add("--steps", type=int, default=20, help="number of training steps (20)")
    every = "record variables every N steps, the length of a device loop (1, or 5 with pipelining)"
    add("--every", type=int, metavar="N", help=every)
    begin = "start from CHECKPOINT (default: from the program's own initial values)"
    add("--begin-from", metavar="CHECKPOINT", help=begin)
    no_measure = "skip the second training, which measures how the model amplifies rounding errors"
    add("--no-measure", action="store_true", help=no_measure)
    program_arguments.add_program(parser)
    add("script", help="the program")
    rest = add("arguments", nargs=argparse.REMAINDER, help="the program's own arguments")
    rest.required = False  # otherwise argparse names them, too, if the script is missing


def execute(options: argparse.Namespace) -> None:
    for refusal in verify_checks.refusals_of_record(options):
        raise errors.InvalidInput(refusal)
    from estimator_bridge.progress_line import ProgressLine
    from estimator_bridge.recording.files import MEASURED, PREDICTION, Recording
    from estimator_bridge.verification.record.processes import Folder, ProcessRecorder, SideProgram
    from estimator_bridge.verification.sides import PERTURBED, A, RecordingRequest

    how_to_run = options.tf1, options.is_module
    programs = {A: SideProgram(options.side, options.script, options.python, *how_to_run)}
    progress = ProgressLine(lambda phase, done, total: f"{phase}: step {done} of {total}")
    record = ProcessRecorder(programs, options.arguments, options.steps, options.every, progress)
    target = pathlib.Path(options.output)
    with Folder(None) as folder:
        side, again = (str(folder.directory / role) for role in (A, PERTURBED))
        begin_from = options.begin_from and os.path.abspath(options.begin_from)
        then = None if options.no_measure else PERTURBED
        record(RecordingRequest(A, side, begin_from, next_role=then))
        if not options.no_measure:
            start = begin_from or f"{side}/start"
            # A measure of evaluations is not needed, because a replay has no evaluations.
            predicts = any(name.startswith(PREDICTION) for name in Recording(side).outcomes.names())
            steps = None if predicts else options.steps
            record(RecordingRequest(PERTURBED, again, start, side, side, steps=steps))
        _move(pathlib.Path(side), target)
        if not options.no_measure:
            _move(pathlib.Path(again), target / MEASURED)
    recording = Recording(target)
    output.show(_described(recording))
    if recording.failure is not None:
        output.tell(f"the program failed after its training: {recording.failure}")


def _move(source: pathlib.Path, target: pathlib.Path) -> None:
    from estimator_bridge.recording import array_files

    target.mkdir(parents=True)
    for path in sorted(source.iterdir()):
        if path.suffix == ".npz":
            array_files.compress(path, target / path.name)
        elif path.suffix == ".json":
            shutil.move(path, target / path.name)


def _described(recording: Recording) -> str:
    files = [path for path in recording.directory.rglob("*") if path.is_file()]
    steps, tables = len(recording.numbers()) - 1, len(recording.settings["tables"])
    return (
        f"{recording.directory}: {steps} steps with {tables} tables, "
        f"{readable(sum(path.stat().st_size for path in files))}."
    )
