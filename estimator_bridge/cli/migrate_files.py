"""Writes the files of `migrate`, after trying the new program. Not a command itself."""

from __future__ import annotations

import argparse
import itertools
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from estimator_bridge import errors, progress_line
from estimator_bridge.cli import output
from estimator_bridge.run.script import StartedProgram, program_of

if TYPE_CHECKING:
    from estimator_bridge.migrate.forms import Form
    from estimator_bridge.migrate.packages import SourceFile
    from estimator_bridge.migrate.rewrite_report import Rewritten
    from estimator_bridge.migrate.undo import Output

_RUN = re.compile(r"^if\s+__name__\s*==", re.MULTILINE)


def write(
    path: pathlib.Path,
    sources: Sequence[SourceFile],
    results: Mapping[str, Rewritten],
    form: Form,
    options: argparse.Namespace,
) -> int:
    from estimator_bridge.migrate import undo

    target, is_folder = _target(path, options), path.is_dir()
    with tempfile.TemporaryDirectory(prefix=".migrate-", dir=target.parent) as place:
        if is_folder:
            staged = pathlib.Path(place) / target.name
            outputs = _staged_folder(path, target, staged, sources, results)
            new, old = _main_of(path, staged, sources, options)
        else:
            # Beside its target, so that it finds the modules that it imports.
            (source,) = sources
            content = results[source.name].source.encode(source.encoding)
            outputs = [undo.Output(target, content, path)]
            # With -m its name must be importable.
            hidden = f"_{target.stem}_new.py" if options.is_module else f".{target.stem}.new.py"
            new, old = target.with_name(hidden), path
        try:
            if not is_folder:
                new.write_bytes(outputs[0].content)
            flags = itertools.chain(*(each.flags for each in results.values()))
            tried = staged if is_folder else new
            status = _tried(new, old, (tried, target), form, options, [*flags])
        finally:
            if not is_folder:
                new.unlink(missing_ok=True)
        if status:
            return status
        if is_folder and not options.in_place:
            os.replace(staged, target)
        else:
            kept = undo.write(outputs, target.with_name(f"{target.name}.undo"))
            if kept is not None:
                output.note(f"To undo: estimator-bridge migrate --undo {kept}")
    output.note(f"{target} is written.")
    return 0


def new_path(path: pathlib.Path, options: argparse.Namespace) -> pathlib.Path:
    if options.in_place or options.output:
        return path if options.in_place else pathlib.Path(options.output)
    names = [options.form if options.form != "tf2" or not options.target else "", options.target]
    ending = "_".join(filter(None, names))
    return path.with_name(f"{path.stem}_{ending}{path.suffix}")


def _target(path: pathlib.Path, options: argparse.Namespace) -> pathlib.Path:
    target = new_path(path, options)
    is_folder = path.is_dir()
    overwrites = options.in_place or (options.force and not is_folder)
    if target.exists() and not overwrites:
        way_out = "another --output" if is_folder else "another --output, or --force"
        raise errors.InvalidInput(f"migrate: {target} exists. Give {way_out}.")
    target = target.resolve()
    if not target.parent.is_dir():
        raise errors.InvalidInput(
            f"migrate: there is no folder {target.parent} for {target.name}. Make it, or give "
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
    from estimator_bridge.migrate import packages, undo
    from estimator_bridge.migrate.syntax import package_names

    for each in packages.files_of(folder):
        copy = staged / each.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(each, copy, follow_symlinks=False)
    old = packages.package_name(folder)
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
    """Runs the new program as far as the options ask. A status other than 0 discards the program.

    `places` has the present path of the new program and its final path. absl ignores those `flags`
    of the old program that the new program does not define.
    """
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

        with progress_line.working("making one step of each training", expected=20.0):
            one_step.check(new_program, arguments, *places)
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
            "it does not call the two programs equal."
        )
    return status
