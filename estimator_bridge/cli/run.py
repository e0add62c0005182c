"""Runs a legacy program unedited: with the bridge in the place of stock's estimator, or without."""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import sys


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "--quirks",
        choices=("stock", "documented"),
        default="stock",
        help="where stock and its documents disagree: stock's numbers (default), or the documents",
    )
    parser.add_argument(
        "--stock",
        action="store_true",
        help="leave stock's estimator in its place (TensorFlow 2.15.1), to compare with",
    )
    parser.add_argument(
        "--software-tpu",
        action="store_true",
        help="with --stock: a TPU of one core, in software, for TPUEstimator(use_tpu=True)",
    )
    parser.add_argument("script", help="the program")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="the program's own arguments, as they are"
    )


def execute(options: argparse.Namespace) -> int:
    """Runs the program as if it were started by itself; returns 0 unless it exits otherwise."""
    if not os.path.isfile(options.script):
        print(f"estimator-bridge: there is no program {options.script!r}.", file=sys.stderr)
        return 2
    if options.software_tpu and not options.stock:
        print("estimator-bridge: --software-tpu goes with --stock.", file=sys.stderr)
        return 2
    return _with_stock(options) if options.stock else _with_bridge(options)


def _with_bridge(options: argparse.Namespace) -> int:
    # TensorFlow is only imported from here on: `--help` must be quick.
    from estimator_bridge import install

    told = install.install(replace=True)
    from estimator_bridge.legacy import spec

    spec.set_default_quirks(options.quirks)
    version = ".".join(str(part) for part in install.tensorflow_version())
    print(
        f"estimator-bridge: running {options.script} on TensorFlow {version} with the bridge as "
        f"{', '.join(told)} (quirks={options.quirks}).",
        file=sys.stderr,
    )
    _run(options)
    return 0


def _with_stock(options: argparse.Namespace) -> int:
    from estimator_bridge import errors, install, software_tpu

    version = ".".join(str(part) for part in install.tensorflow_version())
    tpu: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if options.software_tpu:
        tpu = software_tpu.stock_on_software_tpu()
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(tpu)
        except errors.EngineError as error:
            print(f"estimator-bridge: {error}", file=sys.stderr)
            return 2
        print(
            f"estimator-bridge: running {options.script} on TensorFlow {version} with stock's "
            f"estimator{', on a software TPU of one core' if options.software_tpu else ''}.",
            file=sys.stderr,
        )
        _run(options)
    return 0


def _run(options: argparse.Namespace) -> None:
    sys.argv = [options.script, *options.arguments]
    # As `python script.py` has it: the program's folder first, to import what lies beside it.
    sys.path.insert(0, os.path.dirname(os.path.abspath(options.script)))
    runpy.run_path(options.script, run_name="__main__")
