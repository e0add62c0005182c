"""Rewrites a program so that it imports the bridge, or so that it trains in TensorFlow 2.

--form bridge, for any program: imports and full names of stock lead to the bridge; everything else
stays as it is. The new program is NAME_bridge.py.

--form tf2, for programs with a TPUEstimator: the input functions, columns, the embedding spec and
the model_fn stay; the class Trainer of the library tf2_engine.training, with a strategy, a training
loop and checkpoints of TensorFlow 2, replaces the estimator. The new program is NAME_tf2.py. It
resumes from a converted checkpoint; given one that is not converted, it shows the command that
converts it.

Comments and formatting stay as they are. The report lists by line what was rewritten, and what is
left to do by hand; the program has a comment there.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import pathlib
import sys

from estimator_bridge import errors


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    form = "the new program: the same with imports of the bridge (default), or in TensorFlow 2"
    parser.add_argument("--form", choices=("bridge", "tf2"), default="bridge", help=form)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--output", "-o", metavar="FILE", help="write the new program to FILE")
    where.add_argument("--in_place", action="store_true", help="overwrite the program")
    where.add_argument("--diff", action="store_true", help="print a diff and write nothing")
    parser.add_argument("--force", action="store_true", help="overwrite an existing FILE")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("script", help="the program")


def execute(options: argparse.Namespace) -> None:
    """Writes the new program and prints the report."""
    path = pathlib.Path(options.script)
    if not path.is_file():
        raise errors.InvalidInput(f"migrate: there is no program {options.script!r}.")
    try:
        from estimator_bridge import migrate

        rewrite = {"bridge": migrate.adopt, "tf2": migrate.migrate}[options.form]
    except ModuleNotFoundError as error:
        raise errors.InvalidInput(
            f"migrate: {error}. Install the extra: pip install 'estimator-bridge[migrate]'."
        ) from error
    # Reading bytes keeps the line ends.
    source = path.read_bytes().decode("utf-8")
    rewritten = rewrite(source, options.script)
    if options.diff:
        old, new = (text.splitlines(keepends=True) for text in (source, rewritten.source))
        names = options.script, f"{options.script}, rewritten"
        sys.stdout.writelines(difflib.unified_diff(old, new, *names))
    else:
        target = path.with_name(f"{path.stem}_{options.form}{path.suffix}")
        if options.in_place or options.output:
            target = path if options.in_place else pathlib.Path(options.output)
        _write(target, rewritten.source, options)
    output = sys.stderr if options.diff else sys.stdout
    if options.json:
        print(json.dumps(rewritten.as_dict(), indent=2), file=output)
    else:
        print(*rewritten.lines, sep="\n", file=output)


def _write(target: pathlib.Path, source: str, options: argparse.Namespace) -> None:
    if target.exists() and not (options.force or options.in_place):
        raise errors.InvalidInput(f"migrate: {target} exists. Give another --output, or --force.")
    # Replaced at once, so that no half of a program can be left behind.
    temporary = target.with_name(f".{target.name}.new")
    temporary.write_bytes(source.encode("utf-8"))
    os.replace(temporary, target)
    print(f"{target} is written.", file=sys.stderr)
