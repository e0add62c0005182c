"""`verify --watch`: runs one side alone, and checks in every step what must hold."""

from __future__ import annotations

import argparse
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

from estimator_bridge.cli import output

if TYPE_CHECKING:
    from estimator_bridge.verify.watch.watcher import WatchReport

_OF_TWO_SIDES = ("against", "against_checkpoint", "own_input", "examples", "html")


def refusals(options: argparse.Namespace) -> Iterator[str]:
    """Yields why options cannot go with `--watch`."""
    for name in _OF_TWO_SIDES:
        if options.watch and getattr(options, name):
            option = f"--{name.replace('_', '-')}"
            yield f"--watch runs side B alone, and {option} is about two sides: leave one out."


def watch(options: argparse.Namespace) -> int:
    """Watches side B; returns 0 if all checks hold, 1 if one does not, 2 if the program failed.

    The status is 1 if the program failed after a violation, which is the likelier cause.
    """
    from estimator_bridge.progress_line import ProgressLine
    from estimator_bridge.verify.record.processes import ProcessRecorder, SideProgram
    from estimator_bridge.verify.record.recording import A, B
    from estimator_bridge.verify.watch.watcher import WatchedJob

    how_to_run = options.tf1, options.is_module
    program = SideProgram(options.b, options.script, options.python_b, *how_to_run)
    line = ProgressLine(lambda phase, done, total: f"{phase}: step {done} of {total}")
    with tempfile.TemporaryDirectory() as temporary:
        directory = pathlib.Path(options.keep or temporary).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        job = WatchedJob(directory / B, output.tell)  # at once: a job may run for long

        def progress(phase: str, done: int, total: int) -> None:
            line(phase, done, total)
            job.look()

        programs = {A: program, B: program}
        record = ProcessRecorder(
            programs, options.arguments, options.steps, options.every, progress
        )
        begin_from = options.begin_from and os.path.abspath(options.begin_from)
        report = job.run(record, begin_from)
    return _report(report, options)


def _report(report: WatchReport, options: argparse.Namespace) -> int:
    output.show(report)
    if options.json:
        output.write_json(options.json, report.as_dict())
    if report.violations:
        return 1
    return 0 if report.holds else 2
