"""Splits a linked program into its modules, which import from each other again.

A module imports a name of another module, or writes it as `module.name` if the old code did so.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from estimator_bridge.migrate.keras_form.program_text import global_names
from estimator_bridge.migrate.keras_form.program_text.linked_modules import (
    LinkedModule,
    LinkedModules,
    rename_definitions,
)
from estimator_bridge.migrate.keras_form.program_text.source import Source
from estimator_bridge.migrate.syntax.edits import lines_of
from estimator_bridge.migrate.syntax.import_statements import of_names
from estimator_bridge.migrate.syntax.modules import Modules, written_module

_MARK = re.compile(r'^"@@module (\d+)@@"\n', re.MULTILINE)
_FUTURE = "from __future__ import annotations\n"

Needed = Mapping[str, Collection[str]]


def texts(linked: LinkedModules, text: str, needed: Needed) -> dict[str, str]:
    """Returns the new text of each file; `text` has the module marks."""
    pieces = _MARK.split(text)[1:]
    parts = [
        _Part(linked, linked.order[int(number)], piece)
        for number, piece in zip(pieces[::2], pieces[1::2], strict=True)
    ]
    return {each.module.text.file: each.finished(parts, needed) for each in parts}


class _Part:
    """The new text of a module.

    Attributes:
        bound: the names that the module itself binds, by their linked names, with the statements.
        old_names: the names in the old module, by those in the linked program.
    """

    def __init__(self, linked: LinkedModules, module: LinkedModule, text: str) -> None:
        self._linked, self.module = linked, module
        self._source = Source(text, module.text.file)
        self._here = Modules(module.text.name, module.text.is_package)
        names = global_names.bound(self._source.tree)
        self.bound = {name: each for name, each in names.items() if not self._of_package(each)}
        self.old_names = {new: old for old, new in module.new.items()}
        self._wanted: dict[str, set[str]] = {}  # by module of the package
        self._copied: dict[str, None] = {}  # imports copied from other modules

    def finished(self, parts: Iterable[_Part], needed: Needed) -> str:
        source = self._source
        for node, hidden in global_names.uses(source.tree):
            if node.id in self.bound:
                if node.id in self.old_names:
                    source.replace(node, self.old_names[node.id])
                continue
            home = next((each for each in parts if node.id in each.bound), None)
            if home is not None:
                self._name_of(node, home, hidden)
        rename_definitions(source, self.old_names)
        code = source.rendered()
        lines = [*self._copied, *self._of_tensorflow(code, needed), *self._of_others(code)]
        code = source.rendered()
        if code.strip() == self.module.text.text.strip() and not lines:
            return self.module.text.text
        return _with_lines(code, lines, self.module.text.text)

    def _of_package(self, statement: ast.stmt) -> bool:
        is_import = isinstance(statement, (ast.Import, ast.ImportFrom))
        return is_import and bool(dict(self._linked.imports(statement, self._here)))  # type: ignore[arg-type]

    def _name_of(self, node: ast.Name, home: _Part, hidden: Collection[str]) -> None:
        statement = home.bound[node.id]
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            self._copied[ast.unparse(statement)] = None
            return
        module, name = home.module.text.name, home.old_names.get(node.id, node.id)
        imported = self.module.imported
        before = next((each for each, known in imported.items() if known == (module, name)), "")
        prefix = next((each for each, known in imported.items() if known == (module, "")), "")
        if prefix and not before:
            self._source.replace(node, f"{prefix}.{name}")
            return
        taken = {*hidden, *(self.old_names.get(each, each) for each in self.bound)}
        new = before or (node.id if name in taken else name)
        self._source.replace(node, new)
        self._wanted.setdefault(module, set()).add(name if new == name else f"{name} as {new}")

    # Imports.

    def _of_tensorflow(self, code: str, needed: Needed) -> list[str]:
        names = {each.id for each, _ in global_names.uses(ast.parse(code))}
        lines = ["import tensorflow as tf"] if "tf" in names else []
        for module in sorted(needed):
            used = sorted(names & {*needed[module]} - {*self.bound})
            lines += [of_names(module, used)] if used else []
        return lines

    def _of_others(self, code: str) -> list[str]:
        """Updates the imports from the package; returns the import statements to add.

        Drops the import of a module that only the old code used.
        """
        for statement in self._source.tree.body:
            if isinstance(statement, (ast.Import, ast.ImportFrom)) and self._of_package(statement):
                imported = dict(self._linked.imports(statement, self._here))
                kept = [
                    each
                    for each in statement.names
                    if self._stays(each, imported.get(each.asname or each.name), code)
                ]
                self._write_import(statement, kept)
        return [
            f"from {self._written(name)} import {', '.join(sorted(names))}"
            for name, names in sorted(self._wanted.items())
        ]

    def _stays(self, alias: ast.alias, known: tuple[str, str] | None, code: str) -> bool:
        """Whether an import stays: new code uses the module, or needs the name in this form."""
        if known is None:
            return True
        if known[1]:
            return _as_written(alias) in self._wanted.get(known[0], ())
        pattern = rf"\b{re.escape(alias.asname or alias.name)}\."
        return bool(re.search(pattern, code)) or not re.search(pattern, self.module.text.text)

    def _write_import(
        self, statement: ast.Import | ast.ImportFrom, kept: Sequence[ast.alias]
    ) -> None:
        names = [_as_written(each) for each in kept]
        if isinstance(statement, ast.ImportFrom):
            module = self._here.absolute(written_module(statement))
            names += sorted(self._wanted.pop(module.rstrip("."), set()) - {*names})
        if not names:
            self._source.drop(statement)
        elif names != [_as_written(each) for each in statement.names]:
            new = f"import {', '.join(names)}"
            if isinstance(statement, ast.ImportFrom):
                new = of_names(written_module(statement), names)
            self._source.replace(statement, new)

    def _written(self, module: str) -> str:
        here = self.module.text
        package = here.name if here.is_package else here.name.rpartition(".")[0]
        is_relative = any(getattr(each, "level", 0) for each in self.module.statements)
        if is_relative and package and module.startswith(f"{package}."):
            return f".{module.removeprefix(f'{package}.')}"
        return module


def _as_written(alias: ast.alias) -> str:
    return f"{alias.name} as {alias.asname}" if alias.asname else alias.name


def _with_lines(text: str, lines: Sequence[str], old: str) -> str:
    tree = ast.parse(text)
    imports = [each for each in tree.body if isinstance(each, (ast.Import, ast.ImportFrom))]
    docstring = tree.body[0] if ast.get_docstring(tree) is not None else None
    last = imports[-1] if imports else docstring
    at = 0 if last is None else last.end_lineno or 0
    rows = lines_of(text)
    added = ["\n" if lines and not imports else "", *(f"{each}\n" for each in lines)]
    if _FUTURE in old:
        behind = 0 if docstring is None else docstring.end_lineno or 0
        rows.insert(behind, f"\n{_FUTURE}")
        at += at >= behind
    new = re.sub(r"\n{4,}", "\n\n\n", "".join([*rows[:at], *added, *rows[at:]]).strip("\n"))
    return f"{new}\n" if new else ""
