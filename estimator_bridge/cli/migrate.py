"""Rewrites a program so that it imports the bridge, or so that it trains in TensorFlow 2.

--form bridge, for any program: imports and full names of stock lead to the bridge; everything else
stays as it is. The new program is NAME_bridge.py.

--form keras, for programs with TPUEstimators, or a canned one: a keras.Model with the layers of
tf2_engine.keras replaces each model_fn and its estimator, or runs the model_fn. The new program is
NAME_keras.py.

--form tf2, for any program: the input functions, columns, the embedding spec and
the model_fn stay; the class Trainer of the library tf2_engine.training, with a strategy, a training
loop and checkpoints of TensorFlow 2, replaces the estimator. The new program is NAME_tf2.py. It
resumes from a converted checkpoint; given one that is not converted, it shows the command that
converts it.

A folder is migrated as a whole, into FOLDER_bridge, FOLDER_tf2 or FOLDER_keras: its modules may
import each other, and other files are copied.

Comments and formatting stay as they are. The report lists by line what was rewritten. What cannot
be converted stays, below a comment `# TODO(estimator-bridge): RULE: what to do`. A program that
needs an edit for a Trainer or a Keras model keeps its estimators, as the bridge's. The exit status
is 0 for a complete program and 3 for one with such places. It is 2 if the program is refused,
because its training, an evaluation or an export cannot be carried over.
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from estimator_bridge import errors, progress_line
from estimator_bridge.cli import migrate_files, output, program_arguments
from estimator_bridge.run.script import program_of

if TYPE_CHECKING:
    from estimator_bridge.migrate.forms import Form
    from estimator_bridge.migrate.packages import SourceFile
    from estimator_bridge.migrate.rewrite_report import Line, Rewritten

FORMS = ("bridge", "tf2", "keras")
"""The names of `estimator_bridge.migrate.forms`, which needs LibCST."""

TARGETS = ("sparsecore",)
"""Hardware that a form may be for, besides TPUs of the first generation."""

_LEFT = 3
"""The exit status if the new program has places that are left to a person."""

_FLAGS = {
    "--force": "overwrite an existing FILE",
    "--json": "print the report as JSON",
    "--check-run": "keep the new program only if it can make one step of each training",
    "--verify": "keep the new program only if `verify`, for which the arguments are, calls it and "
    "the old one equal; the status is that of `verify`",
    "--brief": "print, in place of the report, a page in Markdown with what is left to do",
    "--check": "write nothing: print the report, or all blockers",
    "--list-rules": "print the rules: form, id, class, and what each does",
}
_VALUES = {
    "--only": ("RULES", "apply these rules alone: ids or classes, with commas"),
    "--skip": ("RULES", "do not apply these rules; code stays as it is there"),
    "--main": ("FILE", "of a folder: the program in it that --check-run and --verify run"),
    "--undo": ("FILE", "put back what a migration replaced, from the undo file that it wrote"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    form = (
        "the new program: the same with imports of the bridge (default), in TensorFlow 2, or Keras"
    )
    parser.add_argument("--form", choices=FORMS, default="bridge", help=form)
    target = (
        "the new program, of the tf2 or keras form, is for TPUs with SparseCores (v5p, v6e, "
        "TPU7x), and has their numbers on a host too; what they lack is listed, or refused"
    )
    parser.add_argument("--target", choices=TARGETS, help=target)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--output", "-o", metavar="FILE", help="write the new program to FILE")
    in_place = "overwrite the program; FILE.undo keeps what it was"
    where.add_argument("--in_place", action="store_true", help=in_place)
    where.add_argument("--diff", action="store_true", help="print a diff and write nothing")
    for name, text in _FLAGS.items():
        parser.add_argument(name, action="store_true", help=text)
    for name, (metavar, text) in _VALUES.items():
        parser.add_argument(name, metavar=metavar, help=text)
    tf1 = (
        "whether it is a program of TensorFlow 1, whose imports become those of tf.compat.v1 "
        "(default: if its source names what only TensorFlow 1 has)"
    )
    parser.add_argument("--tf1", action=argparse.BooleanOptionalAction, default=None, help=tf1)
    program_arguments.add_module(parser)
    parser.add_argument("script", nargs="?", help="the program, or a folder")
    arguments = "the program's own arguments, for --check-run and --verify"
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=arguments)


def execute(options: argparse.Namespace) -> int:
    from estimator_bridge.migrate import forms, undo
    from estimator_bridge.migrate.tf2.tf2_rules import KEEP

    if options.list_rules:
        output.show(*forms.rule_lines())
        return 0
    if options.undo is not None:
        restored = undo.restore(pathlib.Path(options.undo))
        output.show(*(f"{path} is as it was." for path in restored))
        return 0
    path, form = _program(options), forms.of_name(options.form, options.target)
    with progress_line.working(f"rewriting {path}", expected=5.0):
        sources, results = _rewritten(path, form, options)
    if any(line.rule == KEEP for each in results.values() for line in each.lines):
        form = forms.of_name("bridge")
    status = 0
    if options.diff:
        _print_diff(sources, results)
    elif not options.check:
        status = migrate_files.write(path, sources, results, form, options)
    _report([*itertools.chain(*(each.lines for each in results.values()))], options)
    left = _tell_what_is_left(path, results, options)
    return status or left


def _tell_what_is_left(
    path: pathlib.Path, results: Mapping[str, Rewritten], options: argparse.Namespace
) -> int:
    from estimator_bridge.migrate import brief, rewrite_report

    new = migrate_files.new_path(path, options)
    files = {str(new / name if path.is_dir() else new): each for name, each in results.items()}
    left = [*rewrite_report.left_to_do(files)]
    if options.brief:
        output.show(*brief.lines(options.form, left, str(path), str(new)))
    elif left:
        output.note(f"{len(left)} place{'s'[: len(left) > 1]} left to you:", *left)
    return _LEFT if left else 0


def _rewritten(
    path: pathlib.Path, form: Form, options: argparse.Namespace
) -> tuple[list[SourceFile], dict[str, Rewritten]]:
    from estimator_bridge.migrate import packages, selection

    selected = selection.of_names(options.only, options.skip, form.rules())
    sources = packages.of_program(path, options.script, options.tf1)
    if path.is_dir():
        results = packages.rewrite_all(form, sources, path, selected)
    else:
        (source,) = sources
        results = {source.name: packages.rewrite_alone(form, source, selected)}
    for source in sources:
        compile(results[source.name].source, source.name, "exec", dont_inherit=True)
    return sources, results


def _report(lines: list[Line], options: argparse.Namespace) -> None:
    if options.brief:
        return
    if options.json:
        from estimator_bridge.migrate.rewrite_report import Rewritten

        output.show_json(Rewritten("", tuple(lines)).as_dict(), on_stderr=options.diff)
    elif options.diff:
        output.note(*lines)
    else:
        output.show(*lines)


def _print_diff(sources: list[SourceFile], results: dict[str, Rewritten]) -> None:
    for source in sources:
        new = results[source.name].source
        old_lines, new_lines = (text.splitlines(keepends=True) for text in (source.text, new))
        names = source.name, f"{source.name}, rewritten"
        output.show_source(difflib.unified_diff(old_lines, new_lines, *names))


def _program(options: argparse.Namespace) -> pathlib.Path:
    if options.script is None:
        raise errors.InvalidInput("migrate: name the program, or the folder, to migrate.")
    path = pathlib.Path(options.script)
    if options.is_module or not path.is_dir():
        path = pathlib.Path(program_of(options.script, options.is_module).file)
    runs = options.check_run or options.verify
    if options.arguments and not runs:
        raise errors.InvalidInput(
            f"migrate: {options.arguments} would be the program's own arguments, which only "
            "--check-run and --verify need. Put options of migrate before the program."
        )
    if runs and (options.diff or options.check):
        raise errors.InvalidInput(
            "migrate: --check-run and --verify run what is written; --diff and --check write "
            "nothing."
        )
    # `.` and `..` have no name from which to make one for the new folder.
    return path.resolve() if path.name in ("", "..") else path
