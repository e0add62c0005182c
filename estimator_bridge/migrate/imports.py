"""The imports of a program: which lead to stock's estimator, and how the bridge's are written."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import libcst as cst
from libcst.helpers import get_full_name_for_node

from estimator_bridge.migrate.names import (
    NAMESPACE,
    Place,
    is_stock_module,
    module_of,
    place_of,
)

_ROOTS = ("tensorflow", "tensorflow_estimator", "estimator_bridge", "keras", "tf_keras")


@dataclasses.dataclass(frozen=True)
class Imported:
    """One name that an import statement binds.

    Attributes:
        full: what it leads to, with dots.
        bound: the name in the program; None for a star.
        place: where the bridge has it; None if only what lies below it can be told.
        comment: what is written behind it in a bracketed list.
    """

    full: str
    bound: str | None
    place: Place | None
    comment: str = ""

    @property
    def by_use(self) -> bool:
        """Whether it is a module of stock, whose names are replaced where they are used."""
        return self.place is None and is_stock_module(self.full)


def read(statement: Any) -> list[Imported]:
    """Returns the names that an `Import` or `ImportFrom` binds; none for relative imports."""
    if isinstance(statement, cst.Import):
        return [_of_import(alias) for alias in statement.names]
    if statement.relative or statement.module is None:
        return []
    module = str(get_full_name_for_node(statement.module))
    if isinstance(statement.names, cst.ImportStar):
        below = module_of(module)
        return [Imported(module, None, Place(below) if below else None)]
    return [_of_from(module, alias) for alias in statement.names]


def _of_import(alias: cst.ImportAlias) -> Imported:
    full = str(get_full_name_for_node(alias.name))
    bound = _bound(alias)
    below = module_of(full)
    # `import a.b` binds a, which is used for other things, too.
    place = Place(below) if below and alias.asname is not None else None
    return Imported(full, bound or full.split(".")[0], place)


def _of_from(module: str, alias: cst.ImportAlias) -> Imported:
    name = str(get_full_name_for_node(alias.name))
    full = f"{module}.{name}"
    place = place_of(full)
    if place is None and module_of(full):
        place = Place(str(module_of(full)))
    if place is None and module_of(module):
        place = Place(str(module_of(module)), name)
    return Imported(full, _bound(alias) or name, place, _comment(alias))


def _bound(alias: cst.ImportAlias) -> str | None:
    name = alias.asname.name if alias.asname is not None else None
    return name.value if isinstance(name, cst.Name) else None


def _comment(alias: cst.ImportAlias) -> str:
    after = getattr(alias.comma, "whitespace_after", None)
    if isinstance(after, cst.ParenthesizedWhitespace) and after.first_line.comment:
        return after.first_line.comment.value
    return ""


def written(imported: Iterable[Imported]) -> Iterator[tuple[str, str]]:
    """Yields import statements for names with a place, one per module, and their comments."""
    by_module: dict[str, list[tuple[str, str]]] = {}
    for each in imported:
        assert each.place is not None
        place = each.place.importable()
        module, _, name = (
            (place.module, "", place.attributes)
            if place.attributes
            else place.module.rpartition(".")
        )
        if each.bound is None:
            by_module.setdefault(place.module, []).append(("*", each.comment))
            continue
        text = name if each.bound == name else f"{name} as {each.bound}"
        by_module.setdefault(module, []).append((text, each.comment))
    for module, names in by_module.items():
        comments = "  ".join(comment for _, comment in names if comment)
        yield f"from {module} import {', '.join(text for text, _ in names)}", comments


def only(statement: Any, names: set[str]) -> Any:
    """Returns an import statement without the other names."""
    bound = read(statement)
    kept = [alias for alias, each in zip(statement.names, bound, strict=True) if each.full in names]
    kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
    return statement.with_changes(names=kept)


def of_tensorflow(statement: Any) -> bool:
    """Returns whether an import of TensorFlow, or of the bridge, is in a top-level statement."""
    if isinstance(statement, cst.FunctionDef | cst.ClassDef):
        return False
    found: list[str] = []

    class Finder(cst.CSTVisitor):
        def visit_Import(self, node: cst.Import) -> None:
            found.extend(each.full for each in read(node))

        def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
            found.extend(each.full for each in read(node))

    statement.visit(Finder())
    return any(name.split(".")[0] in _ROOTS for name in found)


class Aliases:
    """Names under which modules of the bridge are imported for the uses of stock's names.

    Args:
        taken: names that the program uses.
        known: names that the program gives to the bridge's namespace itself.
    """

    def __init__(self, taken: set[str], known: Iterable[str]) -> None:
        self._taken = taken
        self._own = next(iter(known), None)
        self._given: dict[str, str] = {}

    def expression(self, place: Place) -> cst.BaseExpression:
        """Returns what to write for a place."""
        name = self._name(place.module)
        return cst.parse_expression(f"{name}.{place.attributes}" if place.attributes else name)

    def imports(self) -> list[str]:
        """Returns the import statements that the expressions need."""
        found = []
        for module, name in sorted(self._given.items()):
            parent, _, last = module.rpartition(".")
            found.append(f"from {parent} import {last}" + (f" as {name}" if name != last else ""))
        return found

    def free(self, name: str) -> str:
        """Returns the name, or one like it that the program does not use, and takes it."""
        while name in self._taken:
            name = f"bridge_{name}"
        self._taken.add(name)
        return name

    def _name(self, module: str) -> str:
        if module == NAMESPACE and self._own is not None:
            return self._own
        if module not in self._given:
            wanted = "tf_estimator" if module == NAMESPACE else module.rpartition(".")[2]
            self._given[module] = self.free(wanted)
        return self._given[module]
