"""Compiles the native ops of the host driver into the user's cache, and tries to load them."""

from __future__ import annotations

import argparse
import sys

from estimator_bridge import progress_line

_SECONDS = 15.0
"""About how long it takes to compile them."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    text = "compile them even if the cache has them"
    parser.add_argument("--force", action="store_true", help=text)


def execute(options: argparse.Namespace) -> int:
    """Compiles and loads the ops; returns 0, or 1 with the reason on stderr."""
    from tf2_engine.native import build, loading

    try:
        with progress_line.working("compiling the native ops", _SECONDS):
            build.library(loading.SOURCE, again=options.force)
    except build.CannotBuild as error:
        print(f"estimator-bridge: {error}.", file=sys.stderr)
        return 1
    loaded = loading.load()
    if loaded.ops is None:
        print(f"estimator-bridge: {loaded.reason}", file=sys.stderr)
        return 1
    print(loaded.reason)
    return 0
