"""Rewrites a program so that it imports the bridge, or so that it trains in TensorFlow 2.

--form bridge writes NAME_bridge.py: imports and full names of stock become those of the bridge;
everything else stays as it is.

--form tf2 writes NAME_tf2.py: the class Trainer of the library tf2_engine.training, with a
strategy, a training loop and checkpoints of TensorFlow 2, replaces the estimator. Input functions,
columns, the embedding spec and the model_fn stay. The new program resumes from a converted
checkpoint; if it finds a legacy checkpoint, it shows the command that converts it.

--form keras writes NAME_keras.py: a keras.Model with layers of tf2_engine.keras replaces the
estimator. It either replaces the model_fn, too, or runs it.

A folder is migrated as a whole, into FOLDER_bridge, FOLDER_tf2 or FOLDER_keras: its modules may
import each other, and other files are copied.

Comments and formatting stay. The report lists, by line, what was rewritten. Code that cannot be
converted stays, below a comment `# TODO(estimator-bridge): RULE: what to do`. A program that could
become a Trainer or a Keras model only with an edit keeps its estimators, on the bridge. The exit
status is 0 if the new program is complete, 3 if places are left to you, and 2 if the program is
refused, for example because a statement that trains cannot be carried over.
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
    "--check-run": "keep the new program only if each of its training runs can make one step",
    "--verify": "keep the new program only if `verify` finds it equal to the old one; the exit "
    "status is that of `verify`",
    "--brief": "print a page in Markdown with what is left to do, instead of the report",
    "--check": "write nothing: print the report, or all blockers",
    "--list-rules": "print the form, id, class and effect of each rule",
}
_VALUES = {
    "--only": ("RULES", "apply only these rules: ids or classes, separated by commas"),
    "--skip": ("RULES", "do not apply these rules; the code that they concern stays as it is"),
    "--main": ("FILE", "the program in a folder that --check-run and --verify run"),
    "--undo": ("FILE", "restore the files that a migration overwrote, from its undo file"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    form = "the new program: it imports the bridge (default), or trains in TensorFlow 2 or in Keras"
    parser.add_argument("--form", choices=FORMS, default="bridge", help=form)
    target = (
        "write a tf2 or keras form for TPUs with SparseCores (v5p, v6e, TPU7x), which computes "
        "their results on a host too; settings that these TPUs lack are reported or refused"
    )
    parser.add_argument("--target", choices=TARGETS, help=target)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--output", "-o", metavar="FILE", help="write the new program to FILE")
    in_place = "overwrite the program; FILE.undo keeps its old contents"
    where.add_argument("--in_place", action="store_true", help=in_place)
    where.add_argument("--diff", action="store_true", help="print a diff and write nothing")
    for name, text in _FLAGS.items():
        parser.add_argument(name, action="store_true", help=text)
    for name, (metavar, text) in _VALUES.items():
        parser.add_argument(name, metavar=metavar, help=text)
    tf1 = (
        "whether the program is for TensorFlow 1; its imports then become those of tf.compat.v1 "
        "(default: yes, if its source uses a name that only TensorFlow 1 has)"
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
            "migrate: --check-run and --verify run the new program, but --diff and --check do not "
            "write one. Leave one of these options out."
        )
    # `.` and `..` have no name from which to make one for the new folder.
    return path.resolve() if path.name in ("", "..") else path
