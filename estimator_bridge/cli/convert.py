"""Converts a checkpoint between legacy estimators (by name), TF2 (by object) and PyTorch."""

from __future__ import annotations

import argparse

from estimator_bridge.cli import output, program_arguments
from estimator_bridge.progress_line import ProgressLine


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("old", metavar="OLD", help="a checkpoint, or a directory, whose latest checkpoint is used")
    add("new", metavar="NEW", help="the directory to create")
    program_arguments.add_checkpoint(parser)
    forms = "the form to write (default: object, if OLD stores values by name; otherwise names)"
    add("--to", choices=("names", "object", "sparsecore", "torch"), help=forms)
    of_torch = (
        "OLD is from PyTorch: safetensors files or a state dict (default: detected from the files)"
    )
    add("--from", dest="from_form", choices=("torch",), help=of_torch)
    for side, text in (("from", "the old"), ("to", "a new")):
        rows = (
            f"how {text} name-based checkpoint spreads rows over hosts (default: as the spec says)"
        )
        add(f"--{side}_partition", choices=("div", "mod"), help=rows)
    writers = "the number of hosts that wrote OLD (default: detected from its slices)"
    add("--from_hosts", type=int, metavar="N", help=writers)
    readers = "the number of hosts that will read a name-based NEW (1)"
    add("--to_hosts", type=int, default=1, metavar="N", help=readers)
    cores = "the number of cores, on all hosts, that will read a NEW for SparseCores (1)"
    add("--to_cores", type=int, default=1, metavar="N", help=cores)
    sparse = "the number of SparseCores of each core: 4 on v5p, 2 on v6e and TPU7x (4)"
    add("--to_sparse_cores", type=int, default=4, metavar="N", help=sparse)
    samples = (
        "for SparseCores: the table of the alphabetically first feature, and the number of that "
        "feature's activations per core"
    )
    add("--samples", action="append", default=[], metavar="TABLE=N", help=samples)
    slots = (
        "the names of slots in a name-based NEW: as with use_tpu=True (tpu, default), as with "
        "use_tpu=False (cpu), or as in a Keras optimizer (keras)"
    )
    add("--slots", choices=("tpu", "cpu", "keras"), default="tpu", help=slots)
    like = "a checkpoint of the program that will read NEW; NEW gets its names or objects"
    add("--like", metavar="CHECKPOINT", help=like)
    add("--scope", help="the variable scope of feature columns in a name-based NEW")
    root = (
        "the object that has the tables (embedding), or in PyTorch the module that has "
        "`embedding_bags`"
    )
    add("--root", help=root)
    rename = "rename a variable; OLD may be an object's key or path; with --like, so may NEW"
    add("--rename", action="append", default=[], metavar="OLD=NEW", help=rename)
    allow = "a name, or a pattern of names, that may lack a counterpart"
    add("--allow", action="append", default=[], metavar="NAME", help=allow)
    none = "no variable is a table: all belong to the model, as in a canned estimator"
    add("--no_tables", action="store_true", help=none)
    step = "use this global step instead of the checkpoint's"
    add("--global_step", type=int, metavar="N", help=step)
    dry = "print where each tensor would go, and write nothing"
    add("--dry_run", action="store_true", help=dry)


def execute(options: argparse.Namespace) -> None:
    from estimator_bridge import convert

    progress = ProgressLine(
        lambda phase, done, total: (
            f"{phase} {100 * done // total if total else 100:3d} % of {total / 1e6:.1f} MB"
        )
    )
    plan = convert.convert(**program_arguments.keywords(options), progress=progress)
    output.show(*plan.lines())
    if options.dry_run:
        output.show(f"{len(plan.moves)} tensors; nothing was written (--dry_run).")
    else:
        output.show(f"{options.new}: {len(plan.moves)} tensors, read back and compared.")
