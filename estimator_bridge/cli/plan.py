"""Estimates the memory, traffic and step time of a cluster of workers and parameter servers.

The tables come from a program or a spec. A program runs with its flags, data and files up to its
first TPUEstimator, but does not train; a spec is imported. The distribution of ids is assumed,
unless --sample reads batches of the training data. Sizes of tables are exact; bytes and times of a
step are estimates.
"""

from __future__ import annotations

import argparse
import pathlib
from typing import TYPE_CHECKING

from estimator_bridge import errors, progress_line
from estimator_bridge.cli import output, program_arguments, run
from estimator_bridge.run.script import program_of

if TYPE_CHECKING:
    from estimator_bridge.planner.of_program import Assumed, PlannedJob
    from estimator_bridge.planner.step_time import Coefficients

_LAYOUTS = ("div", "mod", "octaves")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    positive = program_arguments.positive
    add("--workers", type=positive, default=1, metavar="W", help="number of workers (1)")
    ps = "number of parameter servers (default: the fastest number with enough memory)"
    add("--ps", type=positive, metavar="P", help=ps)
    cores = "cores of all workers together (default: the number in the program, or one per worker)"
    add("--cores", type=positive, metavar="N", help=cores)
    add("--memory", type=_amount, default=16.0, metavar="GB", help="memory of a machine (16)")
    network = "bandwidth of a machine's network in gigabits a second, each way (10)"
    add("--network", type=_amount, default=10.0, metavar="Gb", help=network)
    add("--cpus", type=positive, default=16, metavar="N", help="CPUs of a machine (16)")
    model = "milliseconds of a step that a worker spends on its model and input, without tables (0)"
    add("--model_ms", type=float, default=0.0, metavar="MS", help=model)
    layout = "how rows of large tables are spread over parameter servers (div)"
    add("--layout", choices=_LAYOUTS, default="div", help=layout)
    wire = "how gradients are sent, as for `run` (smallest)"
    add("--wire", choices=run.WIRES, default="smallest", help=wire)
    sample = "count ids in N batches of the training data (default: 0, which assumes a Zipf law)"
    add("--sample", type=int, default=0, metavar="N", help=sample)
    ids = "without --sample: ids per sample, N for every feature (1), or FEATURE=N,FEATURE=N"
    add("--ids", type=_ids, default={}, metavar="N", help=ids)
    zipf = "without --sample: the exponent of the Zipf law of the ids (1.05)"
    add("--zipf", type=float, default=1.05, metavar="S", help=zipf)
    size = "samples of the global batch (default: the program's batch size)"
    add("--batch_size", type=positive, metavar="N", help=size)
    reads = (
        "the chief reads the input for all workers, because the input_fn calls Python functions or "
        "does not shard its data by host"
    )
    add("--chief_reads", action="store_true", help=reads)
    calibrate = (
        "measure the cost of bytes and calls with two tasks on this machine (takes a minute)"
    )
    add("--calibrate", action="store_true", help=calibrate)
    calibration = (
        "a JSON file of measured costs. With --calibrate, the measurement is written to it, and no "
        "program is needed; without --calibrate, the plan uses the costs in the file"
    )
    add("--calibration", metavar="FILE", help=calibration)
    add("--json", action="store_true", help="print JSON")
    add(
        "--chart",
        metavar="FILE",
        help="write a chart of samples per second by number of machines to FILE, as SVG",
    )
    add("--spec", help=program_arguments.SPEC_HELP)
    program_arguments.add_program(parser, "the program or the module of --spec")
    add("script", nargs="?", help="the program")
    add("arguments", nargs=argparse.REMAINDER, help="the program's own arguments")


def execute(options: argparse.Namespace) -> None:
    _check(options)
    _check_outputs(options)
    from estimator_bridge.planner import calibration, capacity, report
    from estimator_bridge.planner.of_program import Assumed
    from estimator_bridge.planner.step_time import Machine

    coefficients = None
    if options.calibration and not options.calibrate:
        coefficients = calibration.read(options.calibration)
    planned = None
    if options.script or options.spec:
        planned = _job(options, Assumed(options.ids, options.zipf))
    if options.calibrate:
        # This has to follow the program, which may set up TensorFlow.
        coefficients = _calibrate(options.calibration)
    if planned is None:
        return
    plan = capacity.plan_capacity(
        planned.job,
        Machine(options.memory * 1e9, options.network * 1e9, options.cpus, options.model_ms),
        coefficients,
        workers=options.workers,
        cores=planned.cores,
        servers=options.ps,
        options=capacity.Options(options.layout, options.wire, chief_reads=options.chief_reads),
    )
    if options.json:
        output.show_json(report.as_dict(plan))
    else:
        output.show(*report.lines(plan))
    if options.chart:
        pathlib.Path(options.chart).write_text(report.chart(plan), encoding="utf-8")
        output.tell(f"the chart is in {options.chart}")


def _calibrate(path: str | None) -> Coefficients:
    from estimator_bridge.planner import calibration

    with progress_line.working("measuring this machine", expected=60.0):
        coefficients = calibration.calibrate(output.tell)
    if path is not None:
        calibration.write(path, coefficients)
        output.tell(f"the calibration is in {path}: `plan --calibration {path}` uses it")
    return coefficients


def _check_outputs(options: argparse.Namespace) -> None:
    for option in ("chart", *["calibration"] * options.calibrate):
        path = getattr(options, option)
        reason = path and output.why_unwritable(path)
        if reason:
            raise errors.InvalidInput(f"plan: --{option} {path} cannot be written: {reason}.")


def _check(options: argparse.Namespace) -> None:
    if options.calibrate and options.calibration and not (options.script or options.spec):
        return
    if not (options.script or options.spec):
        raise errors.InvalidInput("plan: name the program to plan for, or give its --spec.")
    if options.script and options.spec:
        raise errors.InvalidInput(
            f"plan: both --spec {options.spec} and the program {options.script!r} are given. "
            "Give only one of them."
        )
    if options.script:
        program_of(options.script, options.is_module)  # raises if there is none
    if options.spec and not options.batch_size:
        raise errors.InvalidInput("plan: --spec needs --batch_size, the size of a global batch.")
    if options.spec and options.sample:
        raise errors.InvalidInput("plan: --sample needs a program, whose data it reads.")


def _job(options: argparse.Namespace, assumed: Assumed) -> PlannedJob:
    from estimator_bridge.audit.program import AuditedProgram
    from estimator_bridge.planner import of_program

    if options.spec:
        return of_program.job_of_spec(
            program_arguments.load(options.spec, options.tf1),
            options.spec,
            batch_size=options.batch_size,
            cores=options.cores or options.workers,
            assumed=assumed,
        )
    how = options.tf1, output.tell, options.is_module
    program = AuditedProgram(options.script, options.arguments, *how)
    running = progress_line.working(f"running {options.script}", expected=10.0)
    with program_arguments.failures_of(options.script), running:
        return of_program.job_of_program(
            program,
            workers=options.workers,
            cores=options.cores,
            batch_size=options.batch_size,
            sample=options.sample,
            assumed=assumed,
        )


def _amount(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be positive, got {text}")
    return number


def _ids(text: str) -> dict[str | None, float]:
    numbers: dict[str | None, float] = {}
    for part in text.split(","):
        feature, named, number = part.rpartition("=")
        numbers[feature if named else None] = _amount(number)
    return numbers
