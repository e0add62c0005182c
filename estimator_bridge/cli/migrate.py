"""Rewrites a program so that it imports the bridge, or so that it trains in TensorFlow 2.

--form bridge writes NAME_bridge.py: the bridge's imports and qualified names replace those of
stock; everything else stays as it is.

--form tf2 writes NAME_tf2.py: the class Trainer of the library tf2_engine.training replaces the
estimator. A Trainer has a strategy, a training loop and checkpoints of TensorFlow 2. Input
functions, columns, the embedding spec and the model_fn stay. The new program resumes from a
converted checkpoint; if it finds a legacy checkpoint, it shows the command that converts it.

--form keras writes NAME_keras.py: a keras.Model with layers of tf2_engine.keras replaces the
estimator. The new model also replaces the model_fn, or runs it.

A folder is migrated as a whole, into FOLDER_bridge, FOLDER_tf2 or FOLDER_keras. Its modules may
import each other; files that are not modules are copied.

Comments and formatting stay. The report lists, by line, what was rewritten. Code that cannot be
converted stays, below a comment `# TODO(estimator-bridge): RULE: what to do`. If a program would
have to be edited before it can become a Trainer or a Keras model, the new program keeps its
estimators and imports them from the bridge. The exit status is 0 if the new program is complete, 3
if some places are left to you, and 2 if the program is refused, for example because a statement
that trains cannot be carried over.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import itertools
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from estimator_bridge import errors, progress_line
from estimator_bridge.cli import output, program_arguments
from estimator_bridge.run.script import StartedProgram, program_of

if TYPE_CHECKING:
    from estimator_bridge.migrate.forms import Form
    from estimator_bridge.migrate.packages import SourceFile
    from estimator_bridge.migrate.rewrite_report import Line, Rewritten
    from estimator_bridge.migrate.undo import Output

FORMS = ("bridge", "tf2", "keras")
"""The forms in `estimator_bridge.migrate.forms`, repeated because that module needs LibCST."""

TARGETS = ("sparsecore",)
"""The values of --target. Without a target, a form is for TPUs of the first generation."""

_LEFT = 3
"""The exit status if some places in the new program are left to the user."""

_FLAGS = {
    "--force": "overwrite an existing FILE",
    "--json": "print the report as JSON",
    "--check-run": "keep the new program only if each of its training runs completes one step",
    "--verify": "keep the new program only if `verify` finds it equal to the old one; the exit "
    "status is that of `verify`",
    "--brief": "print a Markdown page about the remaining work, instead of the report",
    "--check": "write nothing; print the report, or everything that prevents the migration",
    "--list-rules": "print the form, id, class and effect of each rule",
}
_VALUES = {
    "--only": ("RULES", "apply only these rules: ids or classes, separated by commas"),
    "--skip": ("RULES", "do not apply these rules; the code that they concern stays as it is"),
    "--main": ("FILE", "the program in a folder that --check-run and --verify run"),
    "--undo": ("FILE", "restore the files that a migration overwrote, from its undo file"),
}
_RUN = re.compile(r"^if\s+__name__\s*==", re.MULTILINE)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    form = "whether the new program imports the bridge (default) or trains in TensorFlow 2 or Keras"
    parser.add_argument("--form", choices=FORMS, default="bridge", help=form)
    target = (
        "write a tf2 or keras form that gives the results of TPUs with SparseCores (v5p, v6e, "
        "TPU7x), on a host, too; settings that these TPUs lack are reported or refused"
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
        "whether the program is for TensorFlow 1, so that the new program imports tf.compat.v1 "
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
        status = _write(path, sources, results, form, options)
    _report([*itertools.chain(*(each.lines for each in results.values()))], options)
    left = _tell_what_is_left(path, results, options)
    return status or left


def _tell_what_is_left(
    path: pathlib.Path, results: Mapping[str, Rewritten], options: argparse.Namespace
) -> int:
    from estimator_bridge.migrate import brief, rewrite_report

    new = _new_path(path, options)
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
            f"migrate: {options.arguments} would be the program's own arguments, but only "
            "--check-run and --verify run the program. Put options of migrate before the program."
        )
    if runs and (options.diff or options.check):
        raise errors.InvalidInput(
            "migrate: --check-run and --verify run the new program, but --diff and --check do not "
            "write a program. Leave one of these options out."
        )
    # The name of the new folder is made from the old folder's name, which `.` and `..` do not show.
    return path.resolve() if path.name in ("", "..") else path


def _write(
    path: pathlib.Path,
    sources: Sequence[SourceFile],
    results: Mapping[str, Rewritten],
    form: Form,
    options: argparse.Namespace,
) -> int:
    from estimator_bridge.migrate import undo

    target, is_folder = _target(path, options), path.is_dir()
    with contextlib.ExitStack() as stack:
        if is_folder:
            place = tempfile.TemporaryDirectory(prefix=".migrate-", dir=target.parent)
            tried = pathlib.Path(stack.enter_context(place)) / target.name
            outputs = _staged_folder(path, target, tried, sources, results)
            new, old = _main_of(path, tried, sources, options)
        else:
            # The trial file is beside its target, so that it finds the modules that it imports.
            (source,) = sources
            content = results[source.name].source.encode(source.encoding)
            outputs = [undo.Output(target, content, path)]
            # With -m the file's name must be importable.
            hidden = f"_{target.stem}_new.py" if options.is_module else f".{target.stem}.new.py"
            new, old = target.with_name(hidden), path
            stack.callback(new.unlink, missing_ok=True)
            new.write_bytes(content)
            tried = new
        flags = itertools.chain(*(each.flags for each in results.values()))
        status = _tried(new, old, (tried, target), form, options, [*flags])
        if status:
            return status
        if is_folder and not options.in_place:
            os.replace(tried, target)
        else:
            kept = undo.write(outputs, target.with_name(f"{target.name}.undo"))
            if kept is not None:
                output.note(f"To undo: estimator-bridge migrate --undo {kept}")
    output.note(f"{target} is written.")
    return 0


def _new_path(path: pathlib.Path, options: argparse.Namespace) -> pathlib.Path:
    if options.in_place or options.output:
        return path if options.in_place else pathlib.Path(options.output)
    names = [options.form if options.form != "tf2" or not options.target else "", options.target]
    ending = "_".join(filter(None, names))
    return path.with_name(f"{path.stem}_{ending}{path.suffix}")


def _target(path: pathlib.Path, options: argparse.Namespace) -> pathlib.Path:
    target = _new_path(path, options)
    is_folder = path.is_dir()
    overwrites = options.in_place or (options.force and not is_folder)
    if target.exists() and not overwrites:
        way_out = "another --output" if is_folder else "another --output, or --force"
        raise errors.InvalidInput(f"migrate: {target} exists. Give {way_out}.")
    target = target.resolve()
    if not target.parent.is_dir():
        raise errors.InvalidInput(
            f"migrate: there is no folder {target.parent} for {target.name}. Create it, or give "
            "another --output."
        )
    return target


def _staged_folder(
    folder: pathlib.Path,
    target: pathlib.Path,
    staged: pathlib.Path,
    sources: Sequence[SourceFile],
    results: Mapping[str, Rewritten],
) -> list[Output]:
    from estimator_bridge.migrate import imported_files, packages, undo
    from estimator_bridge.migrate.syntax import package_names

    for each in packages.files_of(folder):
        copy = staged / each.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(each, copy, follow_symlinks=False)
    old = imported_files.package_name(folder)
    above, _, _ = old.rpartition(".")
    new = f"{above}.{target.name}".lstrip(".")
    outputs = []
    for source in sources:
        text = results[source.name].source
        if old and new != old:
            text = package_names.renamed(text, source.name, old, new)
        content = text.encode(source.encoding)
        (staged / source.name).write_bytes(content)
        outputs.append(undo.Output(target / source.name, content, source.path))
    return outputs


def _main_of(
    folder: pathlib.Path,
    staged: pathlib.Path,
    sources: Sequence[SourceFile],
    options: argparse.Namespace,
) -> tuple[pathlib.Path, pathlib.Path]:
    programs = [
        each.name for each in sources if each.name == "__main__.py" or _RUN.search(each.text)
    ]
    if options.main is not None:
        programs = [options.main]
    if (options.check_run or options.verify) and len(programs) != 1:
        raise errors.InvalidInput(
            f"migrate: {folder} has {len(programs)} programs: {', '.join(programs)}. Name the one "
            "to run with --main FILE."
        )
    main = programs[0] if programs else ""
    if options.main is not None and not (folder / main).is_file():
        raise errors.InvalidInput(f"migrate: there is no program {folder / main}.")
    return staged / main, folder / main


def _tried(
    new: pathlib.Path,
    old: pathlib.Path,
    places: tuple[pathlib.Path, pathlib.Path],
    form: Form,
    options: argparse.Namespace,
    flags: Sequence[str],
) -> int:
    # With --undefok, absl accepts flags that only the old program defines.
    undefined = [f"--undefok={','.join(flags)}"] if flags and options.arguments else []
    arguments = [*options.arguments, *undefined]
    if not options.check_run and not options.verify:
        return 0
    program = program_of(options.script if options.is_module else str(old), options.is_module)
    if options.is_module and new.parent != old.resolve().parent:
        raise errors.InvalidInput(
            f"migrate: -m runs the new program as a module of {program.package or 'its folder'}, "
            f"but --output is in {new.parent}. Give an --output in {old.parent}."
        )
    new_program = program.beside(str(new))
    if options.check_run:
        from estimator_bridge.migrate import one_step

        with progress_line.working("running one step of each training call", expected=20.0):
            note = one_step.check(new_program, arguments, *places)
        if note:
            output.tell(f"migrate: {note}")
    return _verified(new_program, program, form, arguments) if options.verify else 0


def _verified(
    new: StartedProgram, old: StartedProgram, form: Form, arguments: Sequence[str]
) -> int:
    from estimator_bridge.cli import verify

    parser = argparse.ArgumentParser(prog="estimator-bridge verify")
    verify.configure(parser)
    how = ["-m"] if old.is_module else []
    command = ["--a", form.verified_against, *how, "--against", new.name, old.name, *arguments]
    status = verify.execute(parser.parse_args(command))
    if status:
        output.tell(
            f"migrate: the new program is not kept, because `verify` ended with status {status}: "
            "it did not find the two programs equal."
        )
    return status
