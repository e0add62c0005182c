"""Reads import statements of stock's estimator, and writes the imports that replace them."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias, TypeGuard

import libcst as cst
from libcst.helpers import get_full_name_for_node

from estimator_bridge.migrate import stock_replacements as stock
from estimator_bridge.migrate.stock_replacements import NAMESPACE, Replacement
from estimator_bridge.migrate.syntax.modules import ALONE, Modules
from estimator_bridge.migrate.syntax.node_search import find

ImportStatement: TypeAlias = cst.Import | cst.ImportFrom
KINDS = (cst.Import, cst.ImportFrom)

_WIDTH = 80  # the line length of most legacy programs
_ROOTS = ("tensorflow", "tensorflow_estimator", "estimator_bridge", "keras", "tf_keras")


@dataclasses.dataclass(frozen=True)
class Imported:
    """A name that an import statement binds.

    Attributes:
        bound: the name in the program; None for a star import.
        place: the replacement in the bridge. None if there is none, or if each attribute that the
            program reads from the imported module has its own replacement.
    """

    full: str
    bound: str | None
    place: Replacement | None
    comment: str = ""

    @property
    def by_use(self) -> bool:
        """Whether the name is a module of stock. If so, uses of its attributes are replaced."""
        return self.place is None and stock.is_stock_module(self.full)


def is_import(node: cst.CSTNode) -> TypeGuard[ImportStatement]:
    return isinstance(node, cst.Import | cst.ImportFrom)


def read(statement: ImportStatement, modules: Modules = ALONE) -> list[Imported]:
    if isinstance(statement, cst.Import):
        return [_of_import(alias) for alias in statement.names]
    module = "." * len(statement.relative)
    if statement.module is not None:
        module += str(get_full_name_for_node(statement.module))
    if isinstance(statement.names, cst.ImportStar):
        below = stock.module_of(module)
        return [Imported(module, None, Replacement(below) if below else None)]
    return [_of_from(module, alias, modules) for alias in statement.names]


def _of_import(alias: cst.ImportAlias) -> Imported:
    full = str(get_full_name_for_node(alias.name))
    bound = _bound(alias)
    below = stock.module_of(full)
    # `import a.b` binds a, and the program may reach other modules through a.
    place = Replacement(below) if below and alias.asname is not None else None
    return Imported(full, bound or full.split(".")[0], place)


def _of_from(module: str, alias: cst.ImportAlias, modules: Modules) -> Imported:
    name = str(get_full_name_for_node(alias.name))
    full = modules.full(f"{module}{'' if module.endswith('.') else '.'}{name}")
    module = full.rpartition(".")[0]
    place = stock.place_of(full)
    if place is None and (below := stock.module_of(full)):
        place = Replacement(below)
    if place is None and (above := stock.module_of(module)):
        place = Replacement(above, full.rpartition(".")[2])
    return Imported(full, _bound(alias) or name, place, _comment(alias))


def _bound(alias: cst.ImportAlias) -> str | None:
    name = alias.asname.name if alias.asname is not None else None
    return name.value if isinstance(name, cst.Name) else None


def _comment(alias: cst.ImportAlias) -> str:
    after = getattr(alias.comma, "whitespace_after", None)
    if isinstance(after, cst.ParenthesizedWhitespace) and after.first_line.comment:
        return str(after.first_line.comment.value)
    return ""


def written(imported: Iterable[Imported]) -> Iterator[tuple[str, str]]:
    """Yields an import statement and its comment for each module."""
    by_module: dict[str, list[tuple[str, str]]] = {}
    for each in imported:
        assert each.place is not None
        module, name = each.place.importable()
        if each.bound is None:
            name = "*"
        else:
            if not name:
                module, _, name = module.rpartition(".")
            if each.bound != name:
                name = f"{name} as {each.bound}"
        by_module.setdefault(module, []).append((name, each.comment))
    for module, names in by_module.items():
        comments = "  ".join(comment for _, comment in names if comment)
        yield f"from {module} import {', '.join(text for text, _ in names)}", comments


def of_names(module: str, names: Sequence[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= _WIDTH:
        return line
    filled = textwrap.fill(", ".join(names), _WIDTH - 4)
    return f"from {module} import (\n{textwrap.indent(filled, '    ')})"


def only(statement: ImportStatement, names: set[str], modules: Modules = ALONE) -> ImportStatement:
    bound = read(statement, modules)
    kept = [alias for alias, each in zip(statement.names, bound, strict=True) if each.full in names]
    kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return statement.with_changes(names=kept)


def of_tensorflow(statement: cst.CSTNode) -> bool:
    if isinstance(statement, cst.FunctionDef | cst.ClassDef):
        return False
    imports = find(statement, *KINDS)
    return any(each.full.split(".")[0] in _ROOTS for node in imports for each in read(node))


def is_import_line(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and all(map(is_import, statement.body))


def is_preface(statement: cst.CSTNode) -> bool:
    if not isinstance(statement, cst.SimpleStatementLine):
        return False
    first = statement.body[0]
    if isinstance(first, cst.Expr):
        return isinstance(first.value, cst.SimpleString | cst.ConcatenatedString)
    if not isinstance(first, cst.ImportFrom):
        return False
    return any(each.full.startswith("__future__.") for each in read(first))


def last_of_tensorflow(statements: Sequence[cst.CSTNode], first: int) -> int:
    """Finds the last import of TensorFlow in the group that starts at `first`."""
    last = first - 1
    for position, each in enumerate(statements[first:], first):
        if not is_import_line(each):
            break
        last = position if of_tensorflow(each) else last
    return last


class Aliases:
    """Chooses the names under which a new program imports modules of the bridge.

    `taken` are the names that the program uses. `namespace_names` are the names under which it
    already imports the bridge's namespace.
    """

    def __init__(self, taken: set[str], namespace_names: Iterable[str]) -> None:
        self._taken = taken
        self._namespace = next(iter(namespace_names), None)
        self._by_module: dict[str, str] = {}

    def expression(self, place: Replacement) -> cst.BaseExpression:
        if place.module == NAMESPACE and self._namespace is not None:
            name = self._namespace
        else:
            name = self._by_module.get(place.module) or self.free(
                "tf_estimator" if place.module == NAMESPACE else place.module.rpartition(".")[2]
            )
            self._by_module[place.module] = name
        return cst.parse_expression(f"{name}.{place.attributes}" if place.attributes else name)

    def imports(self) -> list[str]:
        statements = []
        for module, name in sorted(self._by_module.items()):
            parent, _, last = module.rpartition(".")
            alias = f" as {name}" if name != last else ""
            statements.append(f"from {parent} import {last}{alias}")
        return statements

    def free(self, name: str) -> str:
        """Reserves and returns a name that the program does not use, `name` if possible."""
        while name in self._taken:
            name = f"bridge_{name}"
        self._taken.add(name)
        return name
