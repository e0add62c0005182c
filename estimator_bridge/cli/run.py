"""Runs a legacy program, unedited, on the bridge instead of stock (TensorFlow's own estimator)."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager

from estimator_bridge import errors
from estimator_bridge.cli import program_arguments
from estimator_bridge.cli.output import tell
from estimator_bridge.run.script import StartedProgram, program_of, run_program

ARITHMETICS = ("tpu", "sparsecore")
"""Arithmetics of `tf2_engine.backends.HostDriver`, repeated because that needs TensorFlow."""

LAYOUTS = ("div", "octaves")
"""Layouts of `estimator_bridge.runtime.step.devices`, repeated because that needs TensorFlow."""

WIRES = ("smallest", "occurrences", "cells", "summed")
"""Wire forms of `tf2_engine.backends.ps.messages`, repeated because that needs TensorFlow."""

_NOT_OF_STOCK = {
    "cores": (None, "runs on one core here"),
    "input_hosts": (None, "has one input host here"),
    "layout": ("div", "has no such layout"),
    "wire": ("smallest", "has no tables on servers"),
}
"""Maps each option that does not apply to stock's estimator to its default and the reason."""

_OPS_ARE_UNKNOWN = (
    "the program loads a graph with native ops for tables, which this process has not registered. "
    "Add `import tf2_engine.native.ops` before it loads the graph; the import compiles the ops if "
    "needed."
)


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    quirks = "settings that stock ignores: ignore them (stock, default), or apply them (documented)"
    add("--quirks", choices=("stock", "documented"), default="stock", help=quirks)
    stock = "run the program on stock's own estimator, to compare results (needs TensorFlow 2.15)"
    add("--stock", action="store_true", help=stock)
    software_tpu = (
        "run TPUEstimator(use_tpu=True) on the software TPU, with TPUConfig.num_shards cores, or "
        "with one core for --stock"
    )
    add("--software-tpu", action="store_true", help=software_tpu)
    arithmetic = (
        "the TPUs whose results TPUEstimator(use_tpu=True) computes: the first generation (tpu, "
        "default), or v5p, v6e and TPU7x (sparsecore); settings that these lack are reported"
    )
    add("--arithmetic", choices=ARITHMETICS, default="tpu", help=arithmetic)
    layout = (
        "how rows of large tables are spread over parameter servers: in contiguous parts (div, "
        "default), or so that the load is even if the first rows are the most frequent (octaves)"
    )
    add("--layout", choices=LAYOUTS, default="div", help=layout)
    wire = (
        "how gradients are sent to parameter servers: for each id (occurrences), for each "
        "activation (cells), in the smaller of these forms (smallest, default), or summed for each "
        "row and core (summed), which rounds differently"
    )
    add("--wire", choices=WIRES, default="smallest", help=wire)
    program_arguments.add_program(parser)
    cores = (
        "the number of cores that TPUEstimator(use_tpu=True) emulates if the program does not set "
        "TPUConfig.num_shards (default: $ESTIMATOR_BRIDGE_CORES, or 1)"
    )
    add("--cores", type=program_arguments.positive, metavar="N", help=cores)
    hosts = (
        "the number of hosts that call the input_fn in training with use_tpu=True, each for its "
        "part of the cores. In a cluster: the number of workers, or 1 for the chief; without a "
        "cluster, the hosts are emulated (default: $ESTIMATOR_BRIDGE_INPUT_HOSTS; without it, the "
        "number of workers if the input_fn asks for its host, otherwise 1)"
    )
    add("--input_hosts", type=program_arguments.positive, metavar="N", help=hosts)
    names = "list every name that the bridge replaces or adds"
    add("--show-names", action="store_true", help=names)
    add("script", help="the program, or a folder with a __main__.py")
    rest = add("arguments", nargs=argparse.REMAINDER, help="the program's own arguments")
    rest.required = False  # otherwise argparse names them, too, if the script is missing


def execute(options: argparse.Namespace) -> int:
    program = program_of(options.script, options.is_module)
    _check(options)
    # TensorFlow is imported only from here on, so that `--help` is quick.
    from estimator_bridge.run import install, keras_choice
    from estimator_bridge.run.tf1 import running
    from tf2_engine import log

    version = ".".join(str(part) for part in keras_choice.tensorflow_version())
    if options.stock and not install.has_stock():
        raise errors.InvalidInput(
            f"--stock: TensorFlow {version} has no stock estimator. Install the extra 'legacy', "
            "which brings TensorFlow 2.15.1 and tensorflow-estimator, or leave --stock out."
        )
    with contextlib.ExitStack() as stack:
        estimator = _stock(options, stack) if options.stock else _bridge(options, stack)
        tell(f"running {options.script} on TensorFlow {version} with {estimator}.")
        if options.show_names:
            for name, leads_to, replaced in install.installed():
                tell(f"  {name} -> {leads_to}{' (replaces stock)' if replaced else ''}")
        log.say_facts(tell)
        stack.callback(log.say_facts, None)
        view = running.as_needed(program.file, options.tf1, tell, folder=program.folder)
        return _run(program, options.arguments, view)


def _check(options: argparse.Namespace) -> None:
    for name, (default, reason) in _NOT_OF_STOCK.items():
        value = getattr(options, name)
        if options.stock and value != default:
            raise errors.InvalidInput(
                f"--{name} {value}: stock's estimator {reason}. Leave --{name} out."
            )
    other = "--stock" if options.stock else "--software-tpu" if options.software_tpu else None
    if options.arithmetic != "tpu" and other is not None:
        raise errors.InvalidInput(
            f"--arithmetic {options.arithmetic}: {other} has the embedding hardware of the first "
            f"generation. Leave {other} out."
        )


def _run(
    program: StartedProgram, arguments: Sequence[str], view: AbstractContextManager[bool]
) -> int:
    try:
        with view:
            run_program(program, arguments)
    except Exception as error:
        program_arguments.tell_failure()
        if "not registered 'Tf2Engine" in str(error):
            tell(_OPS_ARE_UNKNOWN)
        return 1
    return 0


def _stock(options: argparse.Namespace, stack: contextlib.ExitStack) -> str:
    if not options.software_tpu:
        return "stock's estimator; the bridge replaces nothing"
    from estimator_bridge.run import software_tpu

    stack.enter_context(software_tpu.stock_on_software_tpu())
    return "stock's estimator, on a software TPU with one core"


def _bridge(options: argparse.Namespace, stack: contextlib.ExitStack) -> str:
    from estimator_bridge.run import install, software_tpu

    names = install.install(replace=True)
    from estimator_bridge.defaults import DEFAULTS
    from estimator_bridge.legacy import spec
    from tf2_engine.native import loading

    loading.load_if_built()  # The program may import the graph of an earlier training.
    DEFAULTS.cores = options.cores
    DEFAULTS.input_hosts = options.input_hosts
    DEFAULTS.arithmetic = options.arithmetic
    DEFAULTS.layout = options.layout
    DEFAULTS.wire = options.wire
    spec.set_default_quirks(options.quirks)
    if options.software_tpu:
        stack.enter_context(software_tpu.bridge_on_software_tpu())
    place = " in the place of stock's" if install.has_stock() else ""
    how = ", on a software TPU" if options.software_tpu else ""
    if options.arithmetic == "sparsecore":
        how = ", with the arithmetic of SparseCores"
    return (
        f"the bridge as {names[0]}{place} and {len(names) - 1} more names (--show-names lists "
        f"them; quirks={options.quirks}){how}"
    )
