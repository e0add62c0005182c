"""Lists what stock ignores or treats unexpectedly in a program, and the sizes of its tables.

Stock is TensorFlow's own estimator. By default the script is read but not run, and the report names
its lines. With --run, the script runs with its flags, data and files up to its first TPUEstimator,
but does not train; the report then also has computed values, and the rows and bytes of every table.
--spec imports a spec, and --model_dir reads the latest checkpoint of a directory. You can combine
these options.

A program includes the modules that it imports from its own folder or package. For a folder, or a
package given with -m (a library, for instance), the report covers all source files. It also lists
the private names of stock that the sources use but the bridge does not have.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from estimator_bridge import errors, progress_line
from estimator_bridge.cli import output, program_arguments
from estimator_bridge.run import script

if TYPE_CHECKING:
    from estimator_bridge.audit import Audit


def configure(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--json", action="store_true", help="print JSON")
    add("--spec", help=program_arguments.SPEC_HELP)
    add("--model_dir", metavar="DIR", help="a directory with checkpoints, or a checkpoint")
    add("--run", action="store_true", help="run the script up to its first TPUEstimator")
    program_arguments.add_program(parser, "the program (with --run) or the module of --spec")
    hosts = "the numbers of hosts for which to report sizes (1,8)"
    add("--hosts", type=_numbers, default=(1, 8), metavar="N,N", help=hosts)
    target = (
        "report the effect of each setting on this target: TPUs with SparseCores (with stock's "
        "TPUEmbeddingV2), or PyTorch"
    )
    add("--target", choices=("v5p", "v6e", "tpu7x", "torch"), help=target)
    cores = "cores of the target, on all hosts together (default: the number in the program, or 1)"
    add("--cores", type=program_arguments.positive, metavar="N", help=cores)
    size = "global batch size on the target (default with --run: the program's batch size)"
    add("--batch_size", type=program_arguments.positive, metavar="N", help=size)
    sample = "with --run and --target: report the SparseCore limits that N batches of the data need"
    add("--sample", type=int, default=0, metavar="N", help=sample)
    add("script", nargs="?", help="the program, or a folder, for instance of a library")
    add("arguments", nargs=argparse.REMAINDER, help="the program's own arguments, for --run")


def execute(options: argparse.Namespace) -> None:
    if not (options.script or options.spec or options.model_dir):
        raise errors.InvalidInput("audit: name a program to audit, or give --spec or --model_dir.")
    if options.run and not options.script:
        raise errors.InvalidInput("audit: --run needs a script.")
    if options.sample and not (options.run and options.target not in (None, "torch")):
        raise errors.InvalidInput(
            "audit: --sample needs --run, a script, and a --target that is a TPU."
        )
    audits = list(_audits(options))
    if options.json:
        output.show_json([audit.as_dict() for audit in audits])
    else:
        for number, audit in enumerate(audits):
            output.show(*[""] * bool(number), *audit.lines())


def _audits(options: argparse.Namespace) -> Iterator[Audit]:
    from estimator_bridge import audit

    target = None
    if options.target:
        target = audit.Target(options.target, options.cores, options.batch_size, options.sample)
    # A run shows more settings than the source, so with --run only the run is audited for the
    # target.
    of_source = None if options.run else target
    folder = _folder(options)
    if folder is not None:
        with progress_line.working(f"reading {folder}", expected=5.0):
            of_folder = audit.audit_folder(folder, of_source)
        yield of_folder
    file = _file(options, folder)
    if file is not None and folder is None:
        try:
            with progress_line.working(f"reading {file}", expected=5.0):
                of_script = audit.audit_script(file, of_source)
        except (SyntaxError, ValueError) as error:
            raise errors.not_python(file, error) from error
        yield of_script
    if options.run:
        running = progress_line.working(f"running {options.script}", expected=10.0)
        with program_arguments.failures_of(file or options.script), running:
            of_run = audit.audit_run(
                *(options.script, options.arguments, options.hosts, target, options.tf1),
                tell=output.tell,
                is_module=options.is_module,
            )
        yield of_run
    spec = program_arguments.load(options.spec, options.tf1) if options.spec else None
    if spec is not None:
        yield audit.audit_spec(spec, options.spec, options.hosts, target)
    if options.model_dir:
        yield audit.audit_model_dir(options.model_dir, spec, options.hosts)


def _folder(options: argparse.Namespace) -> str | None:
    if not options.script or not options.is_module:
        return options.script if os.path.isdir(options.script or "") else None
    found = script.find_module(options.script)
    return found.folders[0] if found is not None and found.folders else None


def _file(options: argparse.Namespace, folder: str | None) -> str | None:
    is_library = folder is not None and not os.path.isfile(os.path.join(folder, "__main__.py"))
    if not options.script or (is_library and not options.run):
        return None
    return script.program_of(options.script, options.is_module).file


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(program_arguments.positive(part) for part in text.split(","))
