"""Describes a checkpoint: tables, slots, how they are stored, and which rows have changed."""

from __future__ import annotations

import argparse

from estimator_bridge import progress_line
from estimator_bridge.cli import checkpoint_arguments, output
from estimator_bridge.progress_line import ProgressLine


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", metavar="DIR", help="a directory, whose latest is taken, or a checkpoint")
    add("--json", action="store_true", help="print JSON")
    checkpoint_arguments.configure(parser)
    add("--root", help="the object that holds the tables")
    initial = "count the rows that differ from this one (default: model.ckpt-0 beside it)"
    add("--initial", metavar="CHECKPOINT", help=initial)
    rows = "how rows were spread over hosts, where those of the initial checkpoint were others"
    add("--from_partition", choices=("div", "mod"), help=rows)


def execute(options: argparse.Namespace) -> None:
    from estimator_bridge import convert
    from estimator_bridge.convert import inspection

    line = ProgressLine(
        lambda phase, done, total: f"{phase} {done:,}/{total:,}", after=progress_line.SHORT
    )
    contents = convert.inspect(**checkpoint_arguments.keywords(options), progress=line)
    progress_line.end_line()
    if options.json:
        output.show_json(contents)
    else:
        output.show(*inspection.lines(contents))
