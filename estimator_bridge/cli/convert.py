"""Converts a checkpoint between legacy estimators (by name), TF2 (by object) and PyTorch."""

from __future__ import annotations

import argparse

from estimator_bridge.cli import checkpoint_arguments, output
from estimator_bridge.progress_line import ProgressLine


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("old", metavar="OLD", help="a checkpoint, or a directory: its latest one")
    add("new", metavar="NEW", help="the directory to make")
    checkpoint_arguments.configure(parser)
    forms = "the form to write (default: object for a checkpoint by name, else names)"
    add("--to", choices=("names", "object", "sparsecore", "torch"), help=forms)
    of_torch = "OLD is of PyTorch: safetensors files, or a state dict (default: told by the files)"
    add("--from", dest="from_form", choices=("torch",), help=of_torch)
    for side, text in (("from", "the old"), ("to", "a new")):
        rows = f"how {text} name-based checkpoint spreads rows over hosts (default: the spec's)"
        add(f"--{side}_partition", choices=("div", "mod"), help=rows)
    writers = "hosts of the writer (default: told by slices)"
    add("--from_hosts", type=int, metavar="N", help=writers)
    add("--to_hosts", type=int, default=1, metavar="N", help="hosts of the reader, by name (1)")
    cores = "cores of all hosts together that read a new checkpoint for SparseCores (1)"
    add("--to_cores", type=int, default=1, metavar="N", help=cores)
    sparse = "SparseCores of each core: 4 on v5p, 2 on v6e and TPU7x (4)"
    add("--to_sparse_cores", type=int, default=4, metavar="N", help=sparse)
    samples = "for SparseCores: activations per core of the first feature by name, by its table"
    add("--samples", action="append", default=[], metavar="TABLE=N", help=samples)
    slots = (
        "names of slots in a new name-based checkpoint: as with use_tpu=True or False, or of a "
        "Keras optimizer (tpu)"
    )
    add("--slots", choices=("tpu", "cpu", "keras"), default="tpu", help=slots)
    like = "of the program that is to read the new one: takes names, or objects, from it"
    add("--like", metavar="CHECKPOINT", help=like)
    add("--scope", help="scope of column variables, when written by name")
    root = "the object that holds the tables (embedding), or the module with `embedding_bags`"
    add("--root", help=root)
    rename = "another name for a variable; an object's key or path may be OLD, with --like NEW"
    add("--rename", action="append", default=[], metavar="OLD=NEW", help=rename)
    allow = "a name, or a pattern, that may be without a counterpart"
    add("--allow", action="append", default=[], metavar="NAME", help=allow)
    none = "all variables are the model's own, as of a canned estimator; there are no tables"
    add("--no_tables", action="store_true", help=none)
    add("--global_step", type=int, metavar="N", help="overrides the checkpoint's")
    add("--dry_run", action="store_true", help="print the map and write nothing")


def execute(options: argparse.Namespace) -> None:
    from estimator_bridge import convert

    progress = ProgressLine(
        lambda phase, done, total: (
            f"{phase} {100 * done // total if total else 100:3d} % of {total / 1e6:.1f} MB"
        )
    )
    plan = convert.convert(**checkpoint_arguments.keywords(options), progress=progress)
    output.show(*plan.lines())
    if options.dry_run:
        output.show(f"{len(plan.moves)} tensors; nothing was written (--dry_run).")
    else:
        output.show(f"{options.new}: {len(plan.moves)} tensors, read back and compared.")
