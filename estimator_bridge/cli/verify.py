"""Runs a program on two engines, from the same state on the same batches, and compares results."""

from __future__ import annotations

import argparse
import datetime
import getpass
import importlib
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import estimator_bridge
from estimator_bridge.cli import output, program_arguments, verify_checks
from estimator_bridge.progress_line import ProgressLine
from estimator_bridge.run.script import program_of
from estimator_bridge.verification.explain.search import SECONDS
from estimator_bridge.verification.sides import SIDES

if TYPE_CHECKING:
    from estimator_bridge.verification.result import Result

# Maps each option to its metavar (None for a flag) and its help.
_OPTIONS: dict[str, tuple[str | tuple[str, ...] | None, str]] = {
    "--against": (
        "PROGRAM",
        "side B runs PROGRAM, for example the output of `migrate`, with the same arguments; with "
        "-m, PROGRAM is a module, too",
    ),
    "--against-checkpoint": (
        "CHECKPOINT",
        "side B is a checkpoint of another program, such as a TF2 program, at side A's last step",
    ),
    "--against-recording": (
        ("A", "B"),
        "compare a recording made by `record` with the recording that its Replay wrote; no program "
        "runs",
    ),
    "--begin-from": (
        "CHECKPOINT",
        "start both sides from CHECKPOINT (default: from the initial values of side A)",
    ),
    "--own-input": (
        None,
        "side B reads its own input (default: it gets the batches of side A)",
    ),
    "--free-run": (
        None,
        "side B continues from its own state (default: from side A's, after every compared step)",
    ),
    "--no-measure": (
        None,
        "skip the third training, which measures how the model amplifies rounding errors",
    ),
    "--watch": (
        None,
        "run only side B, and check in every step the properties that every correct job has",
    ),
    "--examples": (
        "TFRECORDS",
        "query exported models with these tf.Examples (default: the first training batches)",
    ),
    "--json": ("FILE", "write the whole result as JSON"),
    "--html": ("FILE", "write the report as a web page, which can be printed and signed"),
    "--keep": ("DIR", "keep the recordings and logs in DIR, which must not exist"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    for letter, default in (("a", "stock"), ("b", "bridge")):
        parser.add_argument(
            f"--{letter}",
            choices=tuple(SIDES),
            default=default,
            help=f"the engine of side {letter.upper()} ({default}): stock and bridge keep the "
            "program's use_tpu, names with -cpu turn it off, and all others turn it on; -native "
            "and -ops choose which ops the host runs",
        )
        parser.add_argument(
            f"--python-{letter}",
            metavar="PATH",
            default=sys.executable,
            help=f"the Python of side {letter.upper()}, for example one with another TensorFlow",
        )
    parser.add_argument("--steps", type=int, default=20, help="number of training steps (20)")
    every = "compare variables every N steps, the length of a device loop (1, or 5 with pipelining)"
    parser.add_argument("--every", type=int, metavar="N", help=every)
    for option, (metavar, text) in _OPTIONS.items():
        if metavar is None:
            parser.add_argument(option, action="store_true", help=text)
        else:
            count = len(metavar) if isinstance(metavar, tuple) else None
            parser.add_argument(option, metavar=metavar, nargs=count, help=text)
    seconds = (
        "stop the search for the causes of a difference after SECONDS, and list what was not tried "
        f"({SECONDS:g}; 0: do not search)"
    )
    parser.add_argument("--search", type=float, default=SECONDS, metavar="SECONDS", help=seconds)
    program_arguments.add_program(parser, "the program of a side")
    parser.add_argument("script", nargs="?", help="the program")
    arguments_help = "the program's own arguments"
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=arguments_help)


def execute(options: argparse.Namespace) -> int:
    # If a package is missing, no other error matters.
    importlib.import_module("estimator_bridge.verification.procedure")
    from estimator_bridge.verification.findings import Status

    error: object = next(verify_checks.refusals(options), None)
    if error is None:
        try:
            if options.against_recording:
                return _compare_recordings(options)
            return _watch(options) if options.watch else _compare(options)
        except Exception as raised:
            # Python's own status would be 1, which means that the sides differ.
            error = output.cause_of("verify", raised)
        _write_error(options, str(error))
    output.tell(error)
    return int(Status.UNKNOWN)


def _progress() -> ProgressLine:
    return ProgressLine(
        lambda phase, done, total: f"{phase}: step {done} of {total}" if total > 1 else phase
    )


def _compare_recordings(options: argparse.Namespace) -> int:
    from estimator_bridge.verification import procedure

    progress = _progress()
    a, b = options.against_recording
    result = procedure.of_recordings(a, b, options.search, progress)
    result.about = provenance()
    return _report(result, options)


def _compare(options: argparse.Namespace) -> int:
    from estimator_bridge.verification import procedure
    from estimator_bridge.verification.record.processes import Folder, ProcessRecorder, SideProgram
    from estimator_bridge.verification.sides import A, B

    script_b = options.against or options.script
    how_to_run = options.tf1, options.is_module
    programs = {
        A: SideProgram(options.a, options.script, options.python_a, *how_to_run),
        B: SideProgram(options.b, script_b, options.python_b, *how_to_run),
    }
    progress = _progress()
    record = ProcessRecorder(programs, options.arguments, options.steps, options.every, progress)
    how = procedure.ComparisonOptions(
        begin_from=options.begin_from and os.path.abspath(options.begin_from),
        own_input=options.own_input,
        measure=not options.no_measure,
        examples=options.examples,
        free_run=options.free_run,
        checkpoint=options.against_checkpoint,
        pythons={role: program.python for role, program in programs.items()},
        search=options.search,
    )
    about = provenance(
        *(program_of(each, options.is_module).file for each in (options.script, script_b))
    )
    with Folder(options.keep) as folder:
        result = procedure.side_by_side(record, folder.directory, how, progress)
        result.about = about
        if result.failures:
            folder.keeps_logs = True
            logs = ", ".join(map(str, sorted(folder.directory.glob("*.log"))))
            result.notes.append(f"The logs of the sides: {logs}.")
    return _report(result, options)


def _report(result: Result, options: argparse.Namespace) -> int:
    outputs: dict[str, Callable[[], None]] = {"the result": lambda: output.show(result)}
    if options.json:
        outputs[f"--json {options.json}"] = lambda: output.write_json(
            options.json, result.as_dict()
        )
    if options.html:
        outputs[f"--html {options.html}"] = lambda: _write_page(options, result)
    status = int(result.status)
    for name, write in outputs.items():
        try:
            write()
        except OSError as error:
            output.tell(f"{name} cannot be written: {error}.")
            status = 2
            if isinstance(error, BrokenPipeError):
                output.close_stdout()
    return status


def _write_page(options: argparse.Namespace, result: Result) -> None:
    from estimator_bridge.verification.report.page import page

    compared = [options.script, options.against, options.against_checkpoint]
    compared += options.against_recording or []
    names = " against ".join(os.path.basename(path) for path in compared if path)
    text = page(result, " ".join([names, *options.arguments]))
    pathlib.Path(options.html).write_text(text, encoding="utf-8")


def _write_error(options: argparse.Namespace, error: str) -> None:
    from estimator_bridge.verification.result import without_verdict

    if options.json:
        try:
            output.write_json(options.json, without_verdict(error))
        except OSError as raised:
            output.tell(f"--json {options.json}: {raised.strerror}")


def _watch(options: argparse.Namespace) -> int:
    """Returns 0 if all checks hold, 1 if a check is violated, 2 if the program failed otherwise."""
    from estimator_bridge.verification.record.processes import ProcessRecorder, SideProgram
    from estimator_bridge.verification.sides import A, B
    from estimator_bridge.verification.watch.watcher import WatchedJob

    how_to_run = options.tf1, options.is_module
    program = SideProgram(options.b, options.script, options.python_b, *how_to_run)
    line = ProgressLine(lambda phase, done, total: f"{phase}: step {done} of {total}")
    with tempfile.TemporaryDirectory() as temporary:
        directory = pathlib.Path(options.keep or temporary).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        # Violations are reported at once, because a job may run for a long time.
        job = WatchedJob(directory / B, output.tell)

        def progress(phase: str, done: int, total: int) -> None:
            line(phase, done, total)
            job.look()

        programs = {A: program, B: program}
        record = ProcessRecorder(
            programs, options.arguments, options.steps, options.every, progress
        )
        begin_from = options.begin_from and os.path.abspath(options.begin_from)
        report = job.run(record, begin_from)
    output.show(report)
    if options.json:
        output.write_json(options.json, report.as_dict())
    if report.violations:
        return 1
    return 0 if report.holds else 2


def provenance(*programs: str) -> dict[str, str]:
    cores = os.cpu_count() or 1
    circumstances = {
        "estimator bridge": estimator_bridge.__version__,
        "machine": f"{platform.node()}, {platform.system()} {platform.machine()}, {cores} CPUs",
        "user": _user(),
        "date": datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %z"),
    }
    for program in dict.fromkeys(programs):
        circumstances[f"revision of {os.path.basename(program)}"] = revision_of(program)
    return circumstances


def revision_of(path: str) -> str:
    folder, name = os.path.split(os.path.abspath(path))
    revision = _git(folder, "rev-parse", "HEAD")
    if not revision:
        return "not in a git repository"
    if not _git(folder, "ls-files", "--", name):
        return f"{revision}, which does not contain this file"
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return f"{revision}, with changes that are not committed" if changed else revision


def _git(folder: str, *arguments: str) -> str:
    # The configuration of a repository could start a program here.
    command: Sequence[str] = ("git", "-C", folder, "-c", "core.fsmonitor=false", *arguments)
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=10, env=environment)
    except (OSError, subprocess.SubprocessError):
        return ""
    return ran.stdout.strip() if ran.returncode == 0 else ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user id may have no name
        return str(os.getuid())
