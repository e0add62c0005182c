"""Runs a program on two engines, from one start and on the same batches, and compares them."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import sys
import tempfile

from estimator_bridge.verify.sides import SIDES


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
    parser.add_argument(
        "--against",
        metavar="PROGRAM",
        help="side B runs this program, with the same arguments: such as what `migrate` wrote",
    )
    parser.add_argument(
        "--against-checkpoint",
        metavar="CHECKPOINT",
        help="side B is what another program, such as a TF2 one, has saved after the same steps",
    )
    parser.add_argument("--steps", type=int, default=20, help="steps of training (20)")
    parser.add_argument(
        "--every",
        type=int,
        metavar="N",
        help="look at the variables every N steps (1; with pipelining 5), which is a device loop",
    )
    parser.add_argument(
        "--begin-from", metavar="CHECKPOINT", help="begin from it (default: A's initial values)"
    )
    parser.add_argument(
        "--own-input",
        action="store_true",
        help="side B reads its own input (default: it is given the batches of side A)",
    )
    parser.add_argument(
        "--no-measure",
        action="store_true",
        help="do not train a third time to see what the model makes of rounding errors",
    )
    parser.add_argument(
        "--examples",
        metavar="TFRECORDS",
        help="ask exported models with these Examples (default: the first batches of the training)",
    )
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON")
    parser.add_argument("--html", metavar="FILE", help="write a page to read and to sign")
    parser.add_argument(
        "--keep", metavar="DIR", help="keep the recordings and logs there; it must not exist"
    )
    parser.add_argument("script", help="the program")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="the program's own arguments, as they are"
    )


def execute(options: argparse.Namespace) -> int:
    """Compares; returns 0 if the sides are equal, 1 if not, 2 if that could not be found out."""
    from estimator_bridge import errors

    for program in (options.script, options.against):
        if program is not None and not os.path.isfile(program):
            _say(f"there is no program {program!r}.")
            return 2
    if options.against and options.against_checkpoint:
        _say("side B is either a program (--against) or a checkpoint (--against-checkpoint).")
        return 2
    for option in ("--against", "--against-checkpoint"):
        if option in options.arguments:
            _say(f"{option} comes before the program: what is after it is the program's own.")
            return 2
    if options.keep and os.path.exists(options.keep):
        _say(f"--keep {options.keep}: it exists already.")
        return 2
    if options.steps < 1 or (options.every is not None and options.every < 1):
        _say(f"--steps {options.steps} and --every {options.every} must be positive.")
        return 2
    try:
        return _compare(options)
    except errors.EngineError as error:
        _say(str(error))
        return 2


def _compare(options: argparse.Namespace) -> int:
    from estimator_bridge.verify import page, processes, text
    from estimator_bridge.verify.procedure import A, B, side_by_side

    with contextlib.ExitStack() as stack:
        if options.keep:
            directory = pathlib.Path(options.keep)
            directory.mkdir(parents=True)
        else:
            directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pythons = {A: options.python_a, B: options.python_b}
        progress = _Line()
        record = processes.recorder(
            {A: options.a, B: options.b},
            pythons,
            {A: options.script, B: options.against or options.script},
            options.arguments,
            steps=options.steps,
            every=options.every,
            progress=progress,
        )
        result = side_by_side(
            record,
            directory.absolute(),
            begin_from=options.begin_from and os.path.abspath(options.begin_from),
            own_input=options.own_input,
            measure=not options.no_measure,
            pythons=pythons,
            examples=options.examples,
            checkpoint=options.against_checkpoint,
            progress=progress,
        )
    compared = [options.script, options.against, options.against_checkpoint]
    named = " against ".join(os.path.basename(one) for one in compared if one)
    title = " ".join([named, *options.arguments])
    for line in text.lines(result):
        print(line)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(result.as_dict(), indent=1) + "\n")
    if options.html:
        pathlib.Path(options.html).write_text(page.page(result, title))
    return 0 if result.equal else 1


class _Line:
    """A line on stderr that says how far a side is; on a terminal always the same one."""

    def __init__(self) -> None:
        self._told: tuple[str, int] | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._told == (what, done):
            return
        if sys.stderr.isatty():
            ended = "\n" if done >= total else ""
            print(f"\r{what}: step {done} of {total} ", end=ended, file=sys.stderr, flush=True)
        # A log has ten lines of each.
        elif self._told is None or self._told[0] != what or done % max(1, total // 10) == 0:
            _say(f"{what}: step {done} of {total}.")
        self._told = what, done


def _say(line: str) -> None:
    print(f"estimator-bridge: {line}", file=sys.stderr)
