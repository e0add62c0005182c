"""Compiles the native ops, unless the cache or the wheel has them, and tries to load them."""

from __future__ import annotations

import argparse

from estimator_bridge import progress_line
from estimator_bridge.cli import output


def configure(parser: argparse.ArgumentParser) -> None:
    text = "compile them even if the cache or the wheel has them"
    parser.add_argument("--force", action="store_true", help=text)


def execute(options: argparse.Namespace) -> int:
    from tf2_engine.native import build, gpu_ops, loading

    sources = [loading.SOURCE, *([gpu_ops.SOURCE] if loading.on_gpu() else [])]
    try:
        with progress_line.working("compiling the native ops", expected=15.0 * len(sources)):
            for source in sources:
                build.library(source, again=options.force)
    except build.CannotBuild as error:
        output.tell(f"{error}.")
        return 2
    loaded = loading.load()
    if loaded.ops is None:
        output.tell(loaded.reason)
        return 2
    output.show(loaded.reason)
    return 0
