"""Lists the tables and slots of a checkpoint, and how they are stored.

If there is an initial checkpoint, the command also counts the rows that differ from it.
"""

from __future__ import annotations

import argparse

from estimator_bridge import progress_line
from estimator_bridge.cli import output, program_arguments
from estimator_bridge.progress_line import ProgressLine


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", metavar="DIR", help="a checkpoint, or a directory, whose latest checkpoint is used")
    add("--json", action="store_true", help="print JSON")
    program_arguments.add_checkpoint(parser)
    add("--root", help="the object that has the tables")
    initial = "count the rows that differ from this checkpoint (default: the job's model.ckpt-0)"
    add("--initial", metavar="CHECKPOINT", help=initial)
    rows = "how both checkpoints spread tables over hosts, if their numbers of hosts differ"
    add("--from_partition", choices=("div", "mod"), help=rows)


def execute(options: argparse.Namespace) -> None:
    from estimator_bridge import convert
    from estimator_bridge.convert import inspection

    line = ProgressLine(
        lambda phase, done, total: f"{phase} {done:,}/{total:,}", after=progress_line.SHORT
    )
    contents = convert.inspect(**program_arguments.keywords(options), progress=line)
    progress_line.end_line()
    if options.json:
        output.show_json(contents)
    else:
        output.show(*inspection.lines(contents))
