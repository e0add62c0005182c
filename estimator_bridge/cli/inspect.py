"""Describes a checkpoint: tables, slots, how they are stored, and which rows have changed."""

from __future__ import annotations

import argparse
import json

from estimator_bridge.cli import checkpoint_arguments


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "checkpoint", metavar="DIR", help="a directory, whose latest is taken, or a checkpoint"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--spec", help=checkpoint_arguments.HELP)
    parser.add_argument(
        "--table",
        action="append",
        default=[],
        metavar="NAME=VARIABLE",
        help="the variable of a table in a name-based checkpoint; once for each",
    )
    parser.add_argument("--optimizer", help="of all tables, without a spec")
    parser.add_argument("--root", help="the object that holds the tables")
    parser.add_argument(
        "--initial",
        metavar="CHECKPOINT",
        help="count the rows that differ from this one (default: model.ckpt-0 beside it)",
    )
    parser.add_argument(
        "--from_partition",
        choices=("div", "mod"),
        help="how rows were spread over hosts, where those of the initial checkpoint were others",
    )


def execute(options: argparse.Namespace) -> int:
    """Prints the description; returns 0, or 1 with the reason on stderr."""
    return checkpoint_arguments.reported(lambda: _inspect(options))


def _inspect(options: argparse.Namespace) -> None:
    from estimator_bridge import convert
    from estimator_bridge.convert import inspection

    contents = convert.inspect(
        options.checkpoint,
        spec=checkpoint_arguments.load(options.spec) if options.spec else None,
        tables=checkpoint_arguments.pairs("--table", options.table),
        optimizer=options.optimizer,
        root=options.root,
        initial=options.initial,
        from_partition=options.from_partition,
    )
    if options.json:
        print(json.dumps(contents, indent=2))
        return
    for line in inspection.lines(contents):
        print(line)
