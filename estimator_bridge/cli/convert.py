"""Converts a checkpoint between legacy estimators (by name) and TF2 (by object)."""

from __future__ import annotations

import argparse

from estimator_bridge.cli import checkpoint_arguments
from estimator_bridge.progress_line import ProgressLine


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("old", metavar="OLD", help="a checkpoint, or a directory: its latest one")
    parser.add_argument("new", metavar="NEW", help="the directory to make")
    parser.add_argument("--spec", help=checkpoint_arguments.HELP)
    parser.add_argument(
        "--to", choices=("names", "object"), help="the form to write (default: the other one)"
    )
    parser.add_argument(
        "--optimizer", help="of all tables, without a spec (default: told by the slots)"
    )
    parser.add_argument(
        "--table",
        action="append",
        default=[],
        metavar="NAME=VARIABLE",
        help="the variable of a table in the name-based checkpoint; once for each",
    )
    for side, text in (("from", "the old"), ("to", "a new")):
        parser.add_argument(
            f"--{side}_partition",
            choices=("div", "mod"),
            help=f"how {text} name-based checkpoint spreads rows over hosts (default: the spec's)",
        )
    parser.add_argument(
        "--from_hosts", type=int, metavar="N", help="hosts of the writer (default: told by slices)"
    )
    parser.add_argument(
        "--to_hosts", type=int, default=1, metavar="N", help="hosts of the reader, by name (1)"
    )
    parser.add_argument(
        "--slots",
        choices=("tpu", "cpu"),
        default="tpu",
        help="names of slots in a new name-based checkpoint: as with use_tpu=True or False (tpu)",
    )
    parser.add_argument(
        "--like",
        metavar="CHECKPOINT",
        help="of the program that is to read the new one: takes names, or objects, from it",
    )
    parser.add_argument("--scope", help="scope of column variables, when written by name")
    parser.add_argument("--root", help="the object that holds the tables (embedding)")
    parser.add_argument(
        "--rename",
        action="append",
        default=[],
        metavar="OLD=NEW",
        help="another name for a variable; an object's key or path may be OLD, with --like NEW",
    )
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="NAME",
        help="a name, or a pattern, that may be without a counterpart",
    )
    parser.add_argument("--global_step", type=int, metavar="N", help="overrides the checkpoint's")
    parser.add_argument("--dry_run", action="store_true", help="print the map and write nothing")


def execute(options: argparse.Namespace) -> int:
    """Converts; returns 0, or 1 with the reason on stderr."""
    return checkpoint_arguments.reported(lambda: _convert(options))


def _convert(options: argparse.Namespace) -> None:
    from estimator_bridge import convert

    plan = convert.convert(
        options.old,
        options.new,
        spec=checkpoint_arguments.load(options.spec) if options.spec else None,
        to=options.to,
        optimizer=options.optimizer,
        tables=checkpoint_arguments.pairs("--table", options.table),
        from_partition=options.from_partition,
        from_hosts=options.from_hosts,
        to_partition=options.to_partition,
        to_hosts=options.to_hosts,
        slots=options.slots,
        like=options.like,
        scope=options.scope,
        root=options.root,
        rename=checkpoint_arguments.pairs("--rename", options.rename),
        allow=options.allow,
        global_step=options.global_step,
        dry_run=options.dry_run,
        progress=ProgressLine(_describe),
    )
    for line in plan.lines():
        print(line)
    if options.dry_run:
        print(f"{len(plan.moves)} tensors; nothing was written (--dry_run).")
    else:
        print(f"{options.new}: {len(plan.moves)} tensors, read back and compared.")


def _describe(phase: str, done: int, total: int) -> str:
    share = 100 * done // total if total else 100
    return f"{phase} {share:3d} % of {total / 1e6:.1f} MB"
