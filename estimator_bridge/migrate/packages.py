"""Reads and rewrites the files of a program: one file, or a folder of modules."""

from __future__ import annotations

import ast
import dataclasses
import io
import os
import pathlib
import tokenize
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from estimator_bridge import errors
from estimator_bridge.migrate import kept_marks, selection, tf1_programs
from estimator_bridge.migrate.blockers import BRIDGE_FORM, Blocker, Refused, trains_unseen
from estimator_bridge.migrate.forms import FORMS, Form
from estimator_bridge.migrate.imported_files import imported_files, is_own, package_name
from estimator_bridge.migrate.rewrite_report import Line, NoteKind, Rewritten, left_to_do
from estimator_bridge.migrate.selection import ALL, Selection
from estimator_bridge.migrate.syntax import names
from estimator_bridge.migrate.syntax.modules import ALONE, Modules
from estimator_bridge.migrate.syntax.name_flow import NameFlow
from estimator_bridge.migrate.tf2 import sparse_core_rules, tf2_form
from estimator_bridge.migrate.tf2.tf2_rules import KEEP

_BESIDE = "the program imports this module, so both have to be migrated together"
_WHOLE_FOLDER = "Give the folder to `migrate` instead of the program"

_KEPT = (
    "The new program uses the bridge's estimators, which run in TensorFlow 2. To get a {} instead, "
    "change the following in the old program, and migrate it again"
)
_KEPT_BEFORE = (
    "The program has been migrated and keeps its estimators. Change what the comments mark in the "
    "old program, and migrate the old program again"
)


class SourceFile(NamedTuple):
    """A source file; `name` is its path in reports: as the user gave it, or below the folder."""

    path: pathlib.Path
    name: str
    text: str
    encoding: str


def of_program(path: pathlib.Path, name: str, tf1: bool | None = None) -> list[SourceFile]:
    """Reads the sources of a program or a folder; ports TensorFlow 1 sources to `tf.compat.v1`.

    `name` is the name in reports if the program is one file.
    """
    return _ported(sources_of(path) if path.is_dir() else [read(path, name)], tf1)


def with_modules(program: pathlib.Path) -> tuple[list[SourceFile], pathlib.Path]:
    """Reads a program and the modules that it imports, and finds the folder that has them all."""
    paths = [program.resolve(), *(path for path, _ in imported_files(program))]
    folder = pathlib.Path(os.path.commonpath([each.parent for each in paths]))
    return _ported([read(each, str(each.relative_to(folder))) for each in paths]), folder


def _ported(sources: list[SourceFile], tf1: bool | None = None) -> list[SourceFile]:
    if any(tf1_programs.is_of_tf1(each.path, tf1) for each in sources):
        return [each._replace(text=tf1_programs.ported(each.text)) for each in sources]
    return sources


def read(path: pathlib.Path, name: str) -> SourceFile:
    content = path.read_bytes()
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return SourceFile(path, name, content.decode(encoding), encoding)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise errors.not_python(name, error) from error


def files_of(folder: pathlib.Path) -> list[pathlib.Path]:
    """Lists the files of a folder, sorted by path, without hidden and compiled ones."""
    paths = []
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        hidden = any(each.startswith(".") or each == "__pycache__" for each in parts)
        if not hidden and (path.is_file() or path.is_symlink()) and not path.is_dir():
            paths.append(path)
    return paths


def sources_of(folder: pathlib.Path) -> list[SourceFile]:
    own = (each for each in files_of(folder) if is_own(each.relative_to(folder)))
    python = [each for each in own if each.suffix == ".py" and not each.is_symlink()]
    if not python:
        raise errors.InvalidInput(f"migrate: {folder} has no Python file.")
    return [read(each, str(each.relative_to(folder))) for each in python]


def module_name(source: SourceFile, folder: pathlib.Path) -> str:
    parts = [*source.path.relative_to(folder).with_suffix("").parts]
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(filter(None, (package_name(folder), *parts)))


def rewrite_alone(form: Form, source: SourceFile, selected: Selection = ALL) -> Rewritten:
    """Rewrites one file; raises Refused if modules that it imports must be rewritten too."""

    def rewrite(form: Form, sources: Sequence[SourceFile]) -> dict[str, Rewritten]:
        return {source.name: _rewrite_alone(form, sources[0], selected)}

    return _or_kept(form, selected, [source], rewrite)[source.name]


def rewrite_text(form: Form, text: str, name: str, selected: Selection = ALL) -> Rewritten:
    def rewrite(form: Form, sources: Sequence[SourceFile]) -> dict[str, Rewritten]:
        return {name: form.rewrite(sources[0].text, name, selected, ALONE)}

    source = SourceFile(pathlib.Path(name), name, text, "utf-8")
    return _or_kept(form, selected, [source], rewrite)[name]


def _or_kept(
    form: Form,
    selected: Selection,
    sources: Sequence[SourceFile],
    rewrite: Callable[[Form, Sequence[SourceFile]], dict[str, Rewritten]],
) -> dict[str, Rewritten]:
    if not form.keeps_estimators or not selected.takes(KEEP, selection.SAFE):
        return _best(form, sources, rewrite)
    if form.marks_kept and kept_marks.are_marked([each.text for each in sources]):
        done = Line(0, "by hand", "", "", _KEPT_BEFORE, KEEP)
        return {each.name: Rewritten(each.text, (done,)) for each in sources}
    try:
        results = _best(form, sources, rewrite)
        reasons = [each.split(": ", 1)[1] for each in left_to_do(results)]
        if not reasons or form.marks_kept:
            return results
        results = rewrite(FORMS["bridge"], sources)
    except Refused as refused:
        if any(each.rule == "imports-legacy-module" for each in refused.blockers):
            raise
        reasons = [*map(str, refused.blockers)]
        if form.marks_kept:
            sources = [*_marked(sources, refused.blockers)]
        results = rewrite(FORMS["bridge"], sources)
        if not any("estimator_bridge" in each.source for each in results.values()):
            raise
    first = next(iter(results))
    kind: NoteKind = "by hand" if form.marks_kept else "note"
    lines = tuple(
        Line(0, kind, "", "", each, KEEP) for each in (_KEPT.format(form.model), *reasons)
    )
    kept = dataclasses.replace(results[first], lines=(*lines, *results[first].lines))
    return {**results, first: kept}


def _best(
    form: Form,
    sources: Sequence[SourceFile],
    rewrite: Callable[[Form, Sequence[SourceFile]], dict[str, Rewritten]],
) -> dict[str, Rewritten]:
    """Rewrites files to a form. Uses `form.otherwise` for several files, or if the form refuses.

    If both refuse, raises Refused with the blockers of `form.otherwise`; for canned estimators,
    with those of `form`.
    """
    if form.otherwise is None:
        return rewrite(form, sources)
    first: Refused | None = None
    if len(sources) == 1:
        try:
            return rewrite(form, sources)
        except errors.Untranslatable as refused:
            first = refused if isinstance(refused, Refused) else None
            if first and any(each.rule == "imports-legacy-module" for each in first.blockers):
                raise
    try:
        results = rewrite(form._replace(rewrite=form.otherwise), sources)
    except Refused as refused:
        if first is not None and _is_of_canned(first, refused):
            raise first from refused
        raise
    if left := [*left_to_do(results)]:
        raise Refused(sources[0].name, [*map(_blocker_of, left)])
    return results


def _is_of_canned(first: Refused, otherwise: Refused) -> bool:
    is_model_fn = any(each.rule == "keras-model-fn" for each in first.blockers)
    reasons = {each.rule for each in otherwise.blockers}
    return not is_model_fn and not reasons.isdisjoint(("no-estimator", "canned-estimator"))


def _blocker_of(left: str) -> Blocker:
    place, rule, why = left.split(": ", 2)
    return Blocker(0, rule, place, why.rstrip("."), "Change it, and migrate again")


def _marked(sources: Sequence[SourceFile], blockers: Sequence[Blocker]) -> Iterator[SourceFile]:
    names = {each.name for each in sources}
    for source in sources:
        of_file = [each for each in blockers if each.file == source.name]
        if source is sources[0]:  # together with the reasons that concern the whole folder
            of_file += [each for each in blockers if each.file not in names]
        yield source._replace(text=kept_marks.with_marks(source.text, of_file))


def _rewrite_alone(form: Form, source: SourceFile, selected: Selection) -> Rewritten:
    blockers = [
        Blocker(0, "imports-legacy-module", module, _BESIDE, _WHOLE_FOLDER, source.name)
        for module in legacy_modules_beside(form, source)
    ]
    try:
        result = form.rewrite(source.text, source.name, selected, ALONE)
    except Refused as refused:
        # The missing training may be in a module that is migrated together with this one.
        others = [each for each in refused.blockers if each.rule != tf2_form.NO_TRAINING]
        all_blockers = [*others, *blockers] if blockers else refused.blockers
        raise Refused(source.name, all_blockers) from refused
    if blockers:
        raise Refused(source.name, blockers)
    return result


def rewrite_all(
    form: Form, sources: Sequence[SourceFile], folder: pathlib.Path, selected: Selection = ALL
) -> dict[str, Rewritten]:
    """Returns the rewritten files by name; raises Refused with the blockers of all files."""
    if not form.takes_folders:
        raise errors.InvalidInput(
            f"migrate: --form keras --target {sparse_core_rules.TARGET} is only for single files, "
            f"but {folder.name} is a folder. Give a file, or migrate the folder to --form tf2."
        )

    def rewrite(form: Form, sources: Sequence[SourceFile]) -> dict[str, Rewritten]:
        return _rewrite_all(form, sources, folder, selected)

    return _or_kept(form, selected, sources, rewrite)


def _rewrite_all(
    form: Form, sources: Sequence[SourceFile], folder: pathlib.Path, selected: Selection
) -> dict[str, Rewritten]:
    modules_of = {each.name: module_name(each, folder) for each in sources}
    known = dict(pair for each in sources for pair in _bound(each, modules_of[each.name]))
    of_all = "\n".join(each.text for each in sources)
    results: dict[str, Rewritten] = {}
    blockers: list[Blocker] = []
    for source in sources:
        is_package = source.path.name == "__init__.py"
        modules = Modules(modules_of[source.name] or "__main__", is_package, known, of_all)
        try:
            results[source.name] = _of_file(form, source, selected, modules)
        except Refused as refused:
            blockers += refused.blockers
    if not blockers and not any(each.trains for each in results.values()):
        why = f"no file in {folder.name} creates a TPUEstimator that can be migrated"
        blockers.append(Blocker(0, "no-estimator", "", why, BRIDGE_FORM, folder.name))
    checks = tf2_form.NO_TRAINING in form.rules() and not blockers
    if checks and trains_unseen(each.text for each in sources):
        blockers.append(tf2_form.no_training(folder.name))
    if blockers:
        raise Refused(folder.name, blockers)
    return results


def _of_file(form: Form, source: SourceFile, selected: Selection, modules: Modules) -> Rewritten:
    result = form.rewrite(source.text, source.name, selected, modules)
    lines = [] if result.source == source.text else result.lines
    in_file = (dataclasses.replace(each, file=source.name) for each in lines)
    return dataclasses.replace(result, lines=tuple(in_file))


def _bound(source: SourceFile, module: str) -> Iterator[tuple[str, str]]:
    here = Modules(module, source.path.name == "__init__.py")
    try:
        tree = ast.parse(source.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # the form refuses the file and gives the reason
    for name, (full, *_) in NameFlow(tree, here).top_level():
        if full != name:
            yield f"{module}.{name}" if module else name, here.absolute(full)


def legacy_modules_beside(form: Form, source: SourceFile) -> list[str]:
    modules = []
    # If the tf2 form would change a module, the module uses names that no other form has either.
    rewrite = form.rewrite if form.model == "Trainer" else tf2_form.migrate
    for path, name in imported_files(source.path):
        module = read(path, os.path.relpath(path, source.path.parent.resolve()))
        try:
            new = rewrite(module.text, module.name, ALL, Modules(name)).source
        except errors.EngineError:
            new = ""
        # Setting only the Keras version does not count as a change.
        is_changed = new.replace(f"{names.START}\n", "") != module.text
        if is_changed or tf1_programs.is_of_tf1(path):
            modules.append(module.name)
    return modules
