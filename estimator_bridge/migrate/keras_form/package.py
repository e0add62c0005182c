"""Rewrites a package in the Keras form: links its modules into one program and splits it again."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

from estimator_bridge.migrate import keras_losses
from estimator_bridge.migrate.blockers import Blocker, Refused
from estimator_bridge.migrate.keras_form import form, taken_apart
from estimator_bridge.migrate.keras_form.program_text.linked_modules import (
    LinkedModules,
    ModuleText,
)
from estimator_bridge.migrate.keras_form.program_text.source import Source
from estimator_bridge.migrate.rewrite_report import TODO, Line, Rewritten
from estimator_bridge.migrate.stock_replacements import is_of_tensorflow
from estimator_bridge.migrate.syntax.modules import Modules, written_module
from estimator_bridge.migrate.syntax.parsed_program import check_source

_LINE = re.compile(rf"({re.escape(TODO)} [\w-]+: line )(\d+)")


def migrate_package(modules: Sequence[ModuleText], package: str) -> dict[str, Rewritten]:
    """Returns the new text of each module, by its file.

    Modules that have nothing to do with TensorFlow stay unchanged.

    Args:
        package: what error messages call the package.

    Raises:
        InvalidInput: a module is not Python 3.
        Untranslatable: parts of the package cannot be carried over; the message lists all of them.
    """
    for each in modules:
        check_source(each.text, each.file)
    results = {each.file: Rewritten(each.text, (), trains=False) for each in modules}
    if any(form.is_keras_form(Source(each.text, each.file)) for each in modules):
        done = (dataclasses.replace(form.ALREADY, file=each.file) for each in modules)
        return {line.file: dataclasses.replace(results[line.file], lines=(line,)) for line in done}
    linked = LinkedModules(_of_tensorflow(modules), package)
    try:
        new = form.new_program(linked.text, package)
    except Refused as refused:
        raise Refused(package, _placed(refused, linked), "the Keras form") from refused
    lines: dict[str, list[Line]] = {}
    for note in new.lines():
        file, number = linked.places[note.line]
        lines.setdefault(file, []).append(dataclasses.replace(note, line=number, file=file))
    for file, text in taken_apart.texts(linked, new.text, new.needed).items():
        keras_losses.check(text, file)
        text = _LINE.sub(lambda mark: f"{mark[1]}{linked.places[int(mark[2])][1]}", text)
        results[file] = Rewritten(text, (*lines.get("", ()), *lines.get(file, ())), flags=new.flags)
        lines.pop("", None)
    return results


def _placed(refused: Refused, linked: LinkedModules) -> Iterable[Blocker]:
    for each in refused.blockers:
        file, line = linked.places[each.line]
        yield dataclasses.replace(each, line=line, file=file or each.file)


def _of_tensorflow(modules: Sequence[ModuleText]) -> list[ModuleText]:
    by_name = {each.name: each for each in modules}
    imports = {each.name: _imported(each, by_name) for each in modules}
    chosen = {each.name for each in modules if _imports_tensorflow(each)}
    before = 0
    while len(chosen) > before:
        before = len(chosen)
        chosen |= {name for name, others in imports.items() if others & chosen}
        chosen |= {other for name in chosen for other in imports[name]}
    return [each for each in modules if each.name in chosen]


def _imports_tensorflow(module: ModuleText) -> bool:
    return any(map(is_of_tensorflow, Source(module.text, module.file).aliases.values()))


def _imported(module: ModuleText, known: Mapping[str, ModuleText]) -> set[str]:
    here = Modules(module.name, module.is_package)
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.text)):
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = here.absolute(written_module(node)).rstrip(".")
            names |= {above, *(f"{above}.{each.name}".lstrip(".") for each in node.names)}
    return (names & {*known}) - {module.name}
