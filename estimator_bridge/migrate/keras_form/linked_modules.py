"""The modules of a package as one program: names of each other without detours, and back again.

The rules of the Keras form read one program. So the modules are put behind each other, with a mark
at the start of each, and what one names of another, `inputs.input_fn` or an imported `input_fn`, is
named `input_fn` there. The new program is taken apart at the marks; what is of another module then
is imported, or named by that module where the old one did so.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from estimator_bridge.migrate.blockers import Blocker, Refused
from estimator_bridge.migrate.keras_form import global_names
from estimator_bridge.migrate.keras_form.form import import_line
from estimator_bridge.migrate.keras_form.source import Source
from estimator_bridge.migrate.modules import Modules

MARK = '"@@module {}@@"\n'
_MARK = re.compile(r'^"@@module (\d+)@@"\n', re.MULTILINE)
_OWN = "__of_{}"


class ModuleText(NamedTuple):
    """A module of a package: how reports call it, its full name, whether it is a package, its text."""

    file: str
    name: str
    is_package: bool
    text: str


@dataclasses.dataclass(eq=False)
class _Module:
    """A module that is linked.

    Attributes:
        imported: the names that it imports from the others: (module, name there), "" for a module.
        statements: of these imports.
        bound: the other names that it binds.
        new: the names in the linked program of those that others bind, too.
    """

    text: ModuleText
    source: Source
    imported: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    statements: list[ast.stmt] = dataclasses.field(default_factory=list)
    bound: dict[str, ast.stmt] = dataclasses.field(default_factory=dict)
    new: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def tree(self) -> ast.Module:
        return self.source.tree


class LinkedModules:
    """Modules that import each other, as one program.

    Attributes:
        text: of the program.
        places: the file and the line there of each line of the text.

    Raises:
        Refused: names of the package are imported where they cannot be followed.
    """

    def __init__(self, modules: Sequence[ModuleText], package: str) -> None:
        named = {each.name: _Module(each, Source(each.text, each.file)) for each in modules}
        self._modules = named
        self._blockers: list[Blocker] = []
        for each in named.values():
            self._read(each)
        self._order = list(self._in_order())
        self._name()
        self.text, self.places = "", [("", 0)]
        for number, each in enumerate(self._order):
            self._add(number, each)
        if self._blockers:
            raise Refused(package, self._blockers, "the Keras form")

    # What the modules have.

    def _read(self, module: _Module) -> None:
        here = Modules(module.text.name, module.text.is_package)
        for node in ast.walk(module.tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                imported = dict(self._imported(node, here))
                if imported and (node not in module.tree.body or None in imported.values()):
                    self._refuse(module, node)
                elif imported:
                    module.statements.append(node)
                    module.imported.update({k: v for k, v in imported.items() if v is not None})
        module.bound = {
            name: statement
            for name, statement in global_names.bound(module.tree).items()
            if name not in module.imported
        }

    def _imported(
        self, node: ast.Import | ast.ImportFrom, here: Modules
    ) -> Iterator[tuple[str, tuple[str, str] | None]]:
        """Yields the names that a statement binds to modules of the package, or to names of them.

        Those of `import a.b` are "a.b" by themselves. None is one that is not known.
        """
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name in self._modules:
                    yield each.asname or each.name, (each.name, "")
            return
        above = here.absolute("." * node.level + (node.module or "")).rstrip(".")
        for each in node.names:
            full = f"{above}.{each.name}".lstrip(".")
            if full in self._modules:
                yield each.asname or each.name, (full, "")
            elif above in self._modules:
                yield each.asname or each.name, None if each.name == "*" else (above, each.name)

    def _refuse(self, module: _Module, node: ast.stmt) -> None:
        why = "names of the package are imported in a function, or all of them"
        way_out = "Import them by their names at the top of the module"
        code = ast.unparse(node)
        file = module.text.file
        self._blockers.append(Blocker(node.lineno, "keras-import", code, why, way_out, file))

    def _in_order(self) -> Iterator[_Module]:
        """Yields modules behind those that they import."""
        seen: set[str] = set()

        def visit(name: str) -> Iterator[_Module]:
            if name not in seen:
                seen.add(name)
                for other, _ in self._modules[name].imported.values():
                    yield from visit(other)
                yield self._modules[name]

        for name in self._modules:
            yield from visit(name)

    # The names in the linked program.

    def _name(self) -> None:
        """Gives names that would mean something else in the linked program another one there."""
        first: dict[str, _Module] = {}
        for module in self._order:
            stem = module.text.name.replace(".", "_") or "main"
            for name, statement in module.bound.items():
                other = first.setdefault(name, module)
                is_same = other is module or _same(other, module, name)
                if not is_same or self._is_hidden(module, name):
                    module.new[name] = name + _OWN.format(stem)
                del statement

    def _is_hidden(self, module: _Module, name: str) -> bool:
        """Returns whether another module that uses a name has a local one where it does."""
        for other in self._order:
            for node, hidden in _references(other):
                if self._meant(other, node) == (module, name) and name in hidden:
                    return True
        return False

    def _meant(self, module: _Module, node: ast.expr) -> tuple[_Module, str] | None:
        """Returns the module of the package, and its name, that a reference is; or None."""
        parts = ast.unparse(node).split(".")
        for count in range(len(parts), 0, -1):
            known = module.imported.get(".".join(parts[:count]))
            if known is None:
                continue
            other, name = self._modules[known[0]], known[1]
            rest = [name, *parts[count:]] if name else parts[count:]
            if len(rest) != 1:
                return None
            return self._followed(other, rest[0])
        return None

    def _followed(self, module: _Module, name: str) -> tuple[_Module, str]:
        """Returns where a name of a module is bound, if that imports it from a third one."""
        seen = set()
        while name in module.imported and module.imported[name][1] and module not in seen:
            seen.add(module)
            there, name = module.imported[name]
            module = self._modules[there]
        return module, name

    def _add(self, number: int, module: _Module) -> None:
        """Adds the text of a module, with the names of the linked program."""
        source = module.source
        for node, _ in _references(module):
            meant = self._meant(module, node)
            name = module.new.get(node.id) if isinstance(node, ast.Name) else None
            if meant is not None:
                other, known = meant
                if known in other.bound:
                    name = other.new.get(known, known)
                elif isinstance(node, ast.Name):
                    self._unknown(module, node, f"{other.text.name}.{known}")
            if name is not None and name != ast.unparse(node):
                source.replace(node, name)
        for each in module.tree.body:
            if isinstance(each, (ast.FunctionDef, ast.ClassDef)) and each.name in module.new:
                word = "class" if isinstance(each, ast.ClassDef) else "def"
                start = source.span(each)[0] + len(word) + 1
                source.replace_span(start, start + len(each.name), module.new[each.name])
        text = source.render(0, len(source.text))
        future = r"(?m)^from __future__ import annotations\n"
        text = re.sub(future, "\n", text.rstrip("\n")) + "\n"
        file, rows = module.text.file, text.count("\n")
        inside = ((file, line) for line in range(1, rows + 1))
        self.places += [(file, 0), *inside, (file, 0), (file, 0)]
        self.text += f"{MARK.format(number)}{text}\n\n"

    def _unknown(self, module: _Module, node: ast.expr, full: str) -> None:
        self._blockers.append(
            Blocker(
                *(node.lineno, "keras-import", full, "the module does not bind it at its top level"),
                *("Bind it there by a plain statement", module.text.file),
            )
        )

    # And back.

    def parts(self, text: str, needed: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Returns the new text of each file.

        Args:
            text: of the new program, with the marks.
            needed: the names that it imports besides, by module.
        """
        pieces = _MARK.split(text)[1:]
        texts = {int(each): pieces[2 * i + 1] for i, each in enumerate(pieces[::2])}
        of_module = {
            module: _Part(module, texts[number], global_names.bound(ast.parse(texts[number])))
            for number, module in enumerate(self._order)
        }
        return {
            module.text.file: self._finished(part, of_module, needed)
            for module, part in of_module.items()
        }

    def _finished(
        self, part: _Part, parts: Mapping[_Module, _Part], needed: Mapping[str, Sequence[str]]
    ) -> str:
        """Returns the new text of a module: names of others are its own or imported again."""
        module = part.module
        source = Source(part.text, module.text.file)
        old = {_new: each for each, _new in module.new.items()}
        wanted: dict[str, set[str]] = {}  # names by module of the package
        added: dict[str, None] = {}  # other import statements
        local = {name for name in part.bound if not _is_of(part.bound[name], part, self)}
        for node, _ in global_names.uses(source.tree):
            if node.id in local:
                if node.id in old:
                    source.replace(node, old[node.id])
                continue
            home = next((each for each in parts.values() if _binds(each, node.id, self)), None)
            if home is None:
                continue
            statement = home.bound[node.id]
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                added[ast.unparse(statement)] = None
                continue
            restored = {new: each for each, new in home.module.new.items()}.get(node.id, node.id)
            taken = {old.get(each, each) for each in local}
            prefix = self._prefix(module, home.module, restored)
            if prefix:
                source.replace(node, f"{prefix}.{restored}")
            elif restored in taken:
                wanted.setdefault(home.module.text.name, set()).add(f"{restored} as {node.id}")
            else:
                wanted.setdefault(home.module.text.name, set()).add(restored)
                if restored != node.id:
                    source.replace(node, restored)
        for each in source.tree.body:
            if isinstance(each, (ast.FunctionDef, ast.ClassDef)) and each.name in old:
                word = "class" if isinstance(each, ast.ClassDef) else "def"
                start = source.span(each)[0] + len(word) + 1
                source.replace_span(start, start + len(each.name), old[each.name])
        code = source.render(0, len(source.text))
        lines = self._imports(module, source, code, wanted)
        names = {each.id for each, _ in global_names.uses(ast.parse(code))}
        lines = [*added, *(["import tensorflow as tf"] if "tf" in names else []), *lines]
        for name in sorted(needed):
            used = sorted(names & {*needed[name]} - {*part.bound})
            lines += [import_line(name, used)] if used else []
        code = source.render(0, len(source.text))
        if code.strip() == part.old.strip() and not lines:
            return module.text.text
        return _with_lines(code, lines, module.text.text)

    def _prefix(self, module: _Module, other: _Module, name: str) -> str:
        """Returns the name that a module has for another, if it named what is of that so."""
        if (other.text.name, name) in module.imported.values():
            return ""
        names = (each for each, known in module.imported.items() if known == (other.text.name, ""))
        return next(names, "")

    def _imports(
        self, module: _Module, source: Source, code: str, wanted: dict[str, set[str]]
    ) -> list[str]:
        """Writes the imports from the package; returns the lines that are missing.

        Modules that are not named any more, and were before, are not imported any more.
        """
        here = Modules(module.text.name, module.text.is_package)
        for statement in source.tree.body:
            if not isinstance(statement, (ast.Import, ast.ImportFrom)):
                continue
            imported = dict(self._imported(statement, here))
            if not imported:
                continue
            kept = [
                each
                for each in statement.names
                if self._stays(module, imported.get(each.asname or each.name), each, code, wanted)
            ]
            self._write_import(source, statement, kept, here, wanted)
        return [
            f"from {self._written(module, name)} import {', '.join(sorted(names))}"
            for name, names in sorted(wanted.items())
            if names
        ]

    def _stays(
        self,
        module: _Module,
        known: tuple[str, str] | None,
        alias: ast.alias,
        code: str,
        wanted: Mapping[str, set[str]],
    ) -> bool:
        """Returns whether an import is still used: a module by its name, a name as it is wanted."""
        if known is None:
            return True
        if known[1]:
            return known[1] in wanted.get(known[0], ())
        pattern = rf"\b{re.escape(alias.asname or alias.name)}\."
        return bool(re.search(pattern, code)) or not re.search(pattern, module.text.text)

    def _write_import(
        self,
        source: Source,
        statement: ast.Import | ast.ImportFrom,
        kept: Sequence[ast.alias],
        here: Modules,
        wanted: dict[str, set[str]],
    ) -> None:
        names = [each.name for each in kept]
        if isinstance(statement, ast.ImportFrom):
            module = here.absolute("." * statement.level + (statement.module or "")).rstrip(".")
            names += sorted(wanted.pop(module, set()) - {*names})
        if not names:
            source.drop(statement)
        elif names != [each.name for each in statement.names]:
            as_names = {
                each.name: f"{each.name} as {each.asname}"
                for each in kept
                if each.asname and (dict(self._imported(statement, here))[each.asname] or " ")[1] == ""
            }
            listed = [as_names.get(each, each) for each in names]
            if isinstance(statement, ast.Import):
                source.replace(statement, f"import {', '.join(listed)}")
            else:
                above = "." * statement.level + (statement.module or "")
                source.replace(statement, import_line(above, listed))

    def _written(self, module: _Module, name: str) -> str:
        """Returns a module's name as another one imports modules: relative if it does so."""
        package = module.text.name if module.text.is_package else module.text.name.rpartition(".")[0]
        is_relative = any(getattr(each, "level", 0) for each in module.statements)
        if is_relative and package and name.startswith(f"{package}."):
            return f".{name.removeprefix(f'{package}.')}"
        return name


class _Part:
    """The new text of a module before its names are its own again."""

    def __init__(self, module: _Module, text: str, bound: dict[str, ast.stmt]) -> None:
        self.module, self.text, self.bound = module, text, bound
        self.old = module.text.text


def _references(module: _Module) -> Iterator[tuple[ast.expr, frozenset[str]]]:
    """Yields names that are global, or the longest dotted ones that start so; with local names."""
    for node, hidden in global_names.uses(module.tree):
        yield node, hidden
        up: ast.AST | None = module.source.parent(node)
        while isinstance(up, ast.Attribute):
            yield up, hidden
            up = module.source.parent(up)


def _same(one: _Module, other: _Module, name: str) -> bool:
    """Returns whether two modules bind a name to the same: by an import, or by equal code of such."""
    full = one.source.aliases.get(name), other.source.aliases.get(name)
    if all(full):
        of_tensorflow = all(str(each).startswith("tensorflow") for each in full)
        return full[0] == full[1] or of_tensorflow
    statements = one.bound[name], other.bound[name]
    codes = {ast.unparse(each) for each in statements}
    is_value = all(
        isinstance(each, ast.Assign) and isinstance(each.value, ast.Attribute)
        for each in statements
    )
    return len(codes) == 1 and is_value


def _is_of(statement: ast.stmt, part: _Part, linked: LinkedModules) -> bool:
    """Returns whether a statement imports from the package."""
    here = Modules(part.module.text.name, part.module.text.is_package)
    is_import = isinstance(statement, (ast.Import, ast.ImportFrom))
    return is_import and bool(dict(linked._imported(statement, here)))


def _binds(part: _Part, name: str, linked: LinkedModules) -> bool:
    return name in part.bound and not _is_of(part.bound[name], part, linked)


def _with_lines(text: str, lines: Sequence[str], old: str) -> str:
    """Returns a module with further imports, behind those that it has."""
    tree = ast.parse(text)
    imports = [each for each in tree.body if isinstance(each, (ast.Import, ast.ImportFrom))]
    rows = text.splitlines(keepends=True)
    first = tree.body[0] if tree.body else None
    is_doc = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    at = imports[-1].end_lineno or 0 if imports else (first.end_lineno or 0) * is_doc if first else 0
    blank = "\n" if not imports and lines else ""
    new = "".join([*rows[:at], blank, *(f"{each}\n" for each in lines), *rows[at:]])
    new = re.sub(r"\n{4,}", "\n\n\n", new.strip("\n"))
    if "\nfrom __future__ import annotations\n" in f"\n{old}":
        start = f"{ast.get_docstring(tree, clean=False) or ''}"
        head, _, rest = new.partition(f'"""{start}"""\n') if start else ("", "", new)
        head = f'{head}"""{start}"""\n' if start else ""
        new = f"{head}from __future__ import annotations\n{rest.lstrip()}"
    return f"{new}\n" if new else ""
