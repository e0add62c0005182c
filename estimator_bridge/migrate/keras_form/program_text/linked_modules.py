"""Links the modules of a package into one program, because the rules of the Keras form read one.

A name of another module, `inputs.input_fn` or an imported `input_fn`, becomes `input_fn`. A mark
precedes each module; `taken_apart` splits the new program at the marks.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from estimator_bridge.migrate.blockers import Blocker, Refused
from estimator_bridge.migrate.keras_form.program_text import global_names
from estimator_bridge.migrate.keras_form.program_text.source import Source
from estimator_bridge.migrate.syntax.modules import Modules, written_module

MARK = '"@@module {}@@"\n'
_OWN = "__of_{}"


class ModuleText(NamedTuple):
    """A module of a package; reports call it `file`."""

    file: str
    name: str
    is_package: bool
    text: str


@dataclasses.dataclass(eq=False)
class LinkedModule:
    """A linked module.

    Attributes:
        imported: what each imported name stands for: (module, name there), or "" for the module
            itself.
        statements: the imports that bind these names.
        bound: the other global names, with the statements that bind them.
        new: new names in the linked program, for names that would clash there.
    """

    text: ModuleText
    source: Source
    imported: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    statements: list[ast.stmt] = dataclasses.field(default_factory=list)
    bound: dict[str, ast.stmt] = dataclasses.field(default_factory=dict)
    new: dict[str, str] = dataclasses.field(default_factory=dict)


class LinkedModules:
    """Modules that import each other, as one program.

    Attributes:
        places: for each line of `text`, its file and its line there.
        order: the modules, each after the modules it imports.

    Raises:
        Refused: an import from the package cannot be followed.
    """

    def __init__(self, modules: Sequence[ModuleText], package: str) -> None:
        named = {each.name: LinkedModule(each, Source(each.text, each.file)) for each in modules}
        self.by_name = named
        self._blockers: list[Blocker] = []
        for each in named.values():
            self._read(each)
        self.order = list(self._in_order())
        self._name()
        self.text, self.places = "", [("", 0)]
        for number, each in enumerate(self.order):
            self._add(number, each)
        if self._blockers:
            raise Refused(package, self._blockers, "the Keras form")

    # The contents of the modules.

    def _read(self, module: LinkedModule) -> None:
        here = Modules(module.text.name, module.text.is_package)
        for node in ast.walk(module.source.tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                imported = dict(self.imports(node, here))
                if imported and (node not in module.source.tree.body or None in imported.values()):
                    why = "names of the package are imported in a function, or all of them"
                    way_out = "Import them by their names at the top of the module"
                    self._refuse(module, node, ast.unparse(node), why, way_out)
                elif imported:
                    module.statements.append(node)
                    module.imported.update({k: v for k, v in imported.items() if v is not None})
        module.bound = {
            name: statement
            for name, statement in global_names.bound(module.source.tree).items()
            if name not in module.imported
        }

    def imports(
        self, node: ast.Import | ast.ImportFrom, here: Modules
    ) -> Iterator[tuple[str, tuple[str, str] | None]]:
        """Yields the names that an import binds to modules of the package, or to names in them.

        A name comes with (module, name there), "" for a module itself; None stands for `import *`.
        A plain `import a.b` yields the name "a.b".
        """
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name in self.by_name:
                    yield each.asname or each.name, (each.name, "")
            return
        above = here.absolute(written_module(node)).rstrip(".")
        for each in node.names:
            full = f"{above}.{each.name}".lstrip(".")
            if full in self.by_name:
                yield each.asname or each.name, (full, "")
            elif above in self.by_name:
                yield each.asname or each.name, None if each.name == "*" else (above, each.name)

    def _refuse(
        self, module: LinkedModule, node: ast.stmt | ast.expr, code: str, why: str, way_out: str
    ) -> None:
        file = module.text.file
        self._blockers.append(Blocker(node.lineno, "keras-import", code, why, way_out, file))

    def _in_order(self) -> Iterator[LinkedModule]:
        seen: set[str] = set()

        def visit(name: str) -> Iterator[LinkedModule]:
            if name not in seen:
                seen.add(name)
                for other, _ in self.by_name[name].imported.values():
                    yield from visit(other)
                yield self.by_name[name]

        for name in self.by_name:
            yield from visit(name)

    # The names in the linked program.

    def _name(self) -> None:
        first: dict[str, LinkedModule] = {}
        for module in self.order:
            stem = module.text.name.replace(".", "_") or "main"
            for name in module.bound:
                other = first.setdefault(name, module)
                is_same = other is module or _same(other, module, name)
                if not is_same or self._is_hidden(module, name):
                    module.new[name] = name + _OWN.format(stem)

    def _is_hidden(self, module: LinkedModule, name: str) -> bool:
        """Whether a module refers to this name where a local variable has the same name."""
        for other in self.order:
            for node, hidden in _references(other):
                if self._meant(other, node) == (module, name) and name in hidden:
                    return True
        return False

    def _meant(self, module: LinkedModule, node: ast.expr) -> tuple[LinkedModule, str] | None:
        """Resolves a reference to a module of the package and a name in it; None for others."""
        parts = ast.unparse(node).split(".")
        for count in range(len(parts), 0, -1):
            known = module.imported.get(".".join(parts[:count]))
            if known is None:
                continue
            other, name = self.by_name[known[0]], known[1]
            rest = [name, *parts[count:]] if name else parts[count:]
            if len(rest) != 1:
                return None
            return self._followed(other, rest[0])
        return None

    def _followed(self, module: LinkedModule, name: str) -> tuple[LinkedModule, str]:
        seen = set()
        while name in module.imported and module.imported[name][1] and module not in seen:
            seen.add(module)
            there, name = module.imported[name]
            module = self.by_name[there]
        return module, name

    def _add(self, number: int, module: LinkedModule) -> None:
        source = module.source
        for node, _ in _references(module):
            name = self._new_name(module, node)
            if name and name != ast.unparse(node):
                source.replace(node, name)
        rename_definitions(source, module.new)
        future = r"(?m)^from __future__ import annotations\n"
        text = re.sub(future, "\n", source.rendered().rstrip("\n")) + "\n"
        file, rows = module.text.file, text.count("\n")
        inside = ((file, line) for line in range(1, rows + 1))
        self.places += [(file, 0), *inside, (file, 0), (file, 0)]
        self.text += f"{MARK.format(number)}{text}\n\n"

    def _new_name(self, module: LinkedModule, node: ast.expr) -> str:
        meant = self._meant(module, node)
        if meant is None:
            return module.new.get(node.id, "") if isinstance(node, ast.Name) else ""
        other, known = meant
        if known not in other.bound and isinstance(node, ast.Name):
            why = "the module does not bind it at its top level"
            way_out = "Bind it there by a plain statement"
            self._refuse(module, node, f"{other.text.name}.{known}", why, way_out)
        return other.new.get(known, known) if known in other.bound else ""


def _references(module: LinkedModule) -> Iterator[tuple[ast.expr, frozenset[str]]]:
    """Yields the longest dotted names that start with a global name, and the names local there."""
    for node, hidden in global_names.uses(module.source.tree):
        yield node, hidden
        up: ast.AST | None = module.source.parent(node)
        while isinstance(up, ast.Attribute):
            yield up, hidden
            up = module.source.parent(up)


def _same(one: LinkedModule, other: LinkedModule, name: str) -> bool:
    """Whether two modules bind a name to the same object: by equal imports or equal code."""
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


def rename_definitions(source: Source, names: Mapping[str, str]) -> None:
    for each in source.tree.body:
        if isinstance(each, (ast.FunctionDef, ast.ClassDef)) and each.name in names:
            word = "class" if isinstance(each, ast.ClassDef) else "def"
            start = source.span(each)[0] + len(word) + 1
            source.replace_span(start, start + len(each.name), names[each.name])
