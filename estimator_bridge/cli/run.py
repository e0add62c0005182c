"""Runs a legacy program unedited, with the bridge in the place of stock's estimator."""

from __future__ import annotations

import argparse
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
    parser.add_argument("script", help="the program")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="the program's own arguments, as they are"
    )


def execute(options: argparse.Namespace) -> int:
    """Runs the program as if it were started by itself; returns 0 unless it exits otherwise."""
    if not os.path.isfile(options.script):
        print(f"estimator-bridge: there is no program {options.script!r}.", file=sys.stderr)
        return 2
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
    sys.argv = [options.script, *options.arguments]
    # As `python script.py` has it: the program's folder first, to import what lies beside it.
    sys.path.insert(0, os.path.dirname(os.path.abspath(options.script)))
    runpy.run_path(options.script, run_name="__main__")
    return 0
