"""`estimator-bridge`: finds the command and calls it. Imports nothing heavy."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence

import estimator_bridge

COMMANDS = {
    "audit": "say what stock ignores or treats surprisingly in a program",
    "migrate": "rewrite a program so that it imports the bridge",
    "run": "run a legacy program as it is",
    "build-native": "compile the native ops now instead of at first use",
    "doctor": "say what is used here, and why",
    "verify": "compare a program on two engines, step by step",
    "convert": "convert a checkpoint between legacy estimators and TF2",
    "inspect": "tell what a checkpoint holds",
}
"""Each command is the module of its name in this package, with `configure` and `execute`."""


def parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Returns what parses a command line, and the part of each command by its name."""
    parser = argparse.ArgumentParser(
        prog="estimator-bridge",
        description="Legacy TPUEstimator programs with embeddings on TF2.",
    )
    parser.add_argument("--version", action="version", version=estimator_bridge.__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    by_name = {}
    for name, summary in COMMANDS.items():
        module = importlib.import_module(f"estimator_bridge.cli.{name.replace('-', '_')}")
        by_name[name] = commands.add_parser(name, help=summary, description=module.__doc__)
        module.configure(by_name[name])
        by_name[name].set_defaults(execute=module.execute)
    return parser, by_name


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status."""
    options = parsers()[0].parse_args(arguments)
    return int(options.execute(options))
