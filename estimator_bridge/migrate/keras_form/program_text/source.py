"""Gives access to a program as text and as a tree: resolves names, and edits the text by node."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from estimator_bridge.migrate.blockers import Blocker, Refused
from estimator_bridge.migrate.keras_form.refusals import RULES
from estimator_bridge.migrate.stock_replacements import is_of_tensorflow
from estimator_bridge.migrate.syntax.edits import lines_of, spliced

Text = Callable[[], str]
"""Renders code of the new program. Call it only when all edits of that code are known."""

New = str | Text

WIDTH = 100

_STOCK = ("estimator", "tensorflow_estimator")

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)

_Node = TypeVar("_Node", bound=ast.AST)


class NotSimple(Exception):
    """A model_fn is too complicated to become a class."""

    def __init__(self, node: ast.AST | None, why: str) -> None:
        super().__init__(why)
        self.line = getattr(node, "lineno", 0)


class Source:
    """A parsed program. If the text was simplified, `lines` has each line's number in the file.

    Attributes:
        aliases: maps each name that an import binds to a full name, such as "tf" to "tensorflow".
        notes: (line, explanation) for code that is left out or changed.
        needed: maps modules to the names to import from them.
    """

    def __init__(self, text: str, name: str, lines: Sequence[int] = ()) -> None:
        self.text, self.name = text, name
        self._old_lines = lines
        self.tree = ast.parse(text)
        self._lines = lines_of(text)
        self._starts = [*itertools.accumulate(map(len, self._lines), initial=0)]
        self.parents = {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }
        self.aliases = dict(_imports(self.tree))
        self._edits: dict[tuple[int, int], New] = {}
        self.problems: set[Blocker] = set()
        self.notes: list[tuple[int, str]] = []
        self.needed: dict[str, set[str]] = {}
        self.moved: set[ast.stmt] = set()  # left out; their values are written elsewhere
        self.done: set[ast.AST] = set()  # nodes that other code rewrites

    # Names.

    def full(self, node: ast.AST) -> str:
        """Returns the full name of an imported name or attribute; "" for other nodes."""
        if isinstance(node, ast.Attribute):
            above = self.full(node.value)
            return f"{above}.{node.attr}" if above else ""
        return self.aliases.get(node.id, "") if isinstance(node, ast.Name) else ""

    def short(self, node: ast.AST) -> str:
        """Returns the full name without "tensorflow."; "" for other nodes.

        Names of the estimator start with "estimator.".
        """
        return short_name(self.full(node))

    def called(self, node: ast.AST | None) -> str:
        return self.short(node.func) if isinstance(node, ast.Call) else ""

    def need(self, module: str, name: str) -> str:
        self.needed.setdefault(module, set()).add(name)
        return name

    # The tree.

    def parent(self, node: ast.AST) -> ast.AST | None:
        return self.parents.get(node)

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        up = self.parent(node)
        while up is not None:
            yield up
            up = self.parent(up)

    def function_of(self, node: ast.AST) -> ast.AST:
        functions = (each for each in self.above(node) if isinstance(each, ast.FunctionDef))
        return next(functions, self.tree)

    def statement_of(self, node: ast.AST) -> ast.stmt:
        if isinstance(node, ast.stmt):
            return node
        return next(each for each in self.above(node) if isinstance(each, ast.stmt))

    def function(self, name: str, near: ast.AST | None = None) -> ast.FunctionDef | None:
        for tree in filter(None, (near, self.tree)):
            for node in nodes_in(tree, ast.FunctionDef):
                if node.name == name and node is not tree:
                    return node
        return None

    def value_of(self, name: ast.expr | None) -> ast.expr | None:
        """Returns the only value that is assigned to a name, in its function or else in the module.

        Returns None unless there is exactly one plain assignment. An expression that is not a name
        is returned as it is.
        """
        if not isinstance(name, ast.Name):
            return name
        function = self.function_of(name)
        bindings = self._bindings(name.id, function)
        if not bindings and name.id not in {each.arg for each in nodes_in(function, ast.arg)}:
            everywhere = self._bindings(name.id, self.tree)
            bindings = [each for each in everywhere if self.function_of(each) is self.tree]
        only = bindings[0] if len(bindings) == 1 else None
        if isinstance(only, ast.Assign) and isinstance(only.targets[0], ast.Name):
            return only.value
        return None

    def _bindings(self, name: str, below: ast.AST) -> list[ast.AST]:
        return [
            node
            for node in ast.walk(below)
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.For, ast.With, ast.NamedExpr))
            and name in bound_in(node)
        ]

    def scope_of(self, name: str, node: ast.AST) -> ast.AST:
        """Returns the innermost function around a node that binds a name, or else the module."""
        functions = (each for each in self.above(node) if isinstance(each, _FUNCTIONS))
        return next((each for each in functions if name in _bound_by(each)), self.tree)

    def changed_names(self, node: ast.AST, place: ast.AST) -> list[str]:
        """Returns the names in an expression that have other values in another place."""
        own = {each.arg for each in nodes_in(node, ast.arg)} | _stored_in(node)
        names = [each for each in nodes_in(node, ast.Name) if each.id not in own]
        return [each.id for each in names if self._is_changed(each, place)]

    def _is_changed(self, name: ast.Name, place: ast.AST) -> bool:
        scope = self.scope_of(name.id, name)
        if scope is not self.scope_of(name.id, place):
            return True
        if self.function_of(name) is not self.function_of(place):
            return False
        first, last = sorted((name.lineno, place.lineno))  # type: ignore[attr-defined]
        same = [each for each in nodes_in(scope, ast.Name) if each.id == name.id]
        return any(isinstance(each.ctx, ast.Store) and first < each.lineno < last for each in same)

    def uses(self, name: str, below: ast.AST) -> list[ast.Name]:
        names = nodes_in(below, ast.Name)
        return [each for each in names if each.id == name and isinstance(each.ctx, ast.Load)]

    def calls(self, name: str) -> bool:
        return any(self.called(node) == name for node in ast.walk(self.tree))

    # Text.

    def span(self, node: ast.AST) -> tuple[int, int]:
        return (
            self._offset(node.lineno, node.col_offset),  # type: ignore[attr-defined]
            self._offset(node.end_lineno, node.end_col_offset),  # type: ignore[attr-defined]
        )

    def _offset(self, line: int, column: int) -> int:
        prefix = self._lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(prefix)

    def lines(self, statement: ast.stmt, comments: bool = True) -> tuple[int, int]:
        decorators = getattr(statement, "decorator_list", ())
        first = min([statement.lineno, *(each.lineno for each in decorators)])
        while comments and first > 1 and self._lines[first - 2].lstrip().startswith("#"):
            first -= 1
        return self._starts[first - 1], self._starts[statement.end_lineno or statement.lineno]

    def before(self, statement: ast.stmt) -> str:
        start, _ = self.span(statement)
        return self.text[self._starts[statement.lineno - 1] : start]

    def replace(self, node: ast.AST, new: New) -> None:
        self._edits[self.span(node)] = new

    def replace_span(self, start: int, end: int, new: New) -> None:
        self._edits[start, end] = new

    def insert(self, offset: int, text: str) -> None:
        """Inserts text, in front of earlier insertions at this offset."""
        before = self._edits.get((offset, offset), "")
        code = before if callable(before) else lambda: str(before)
        self._edits[offset, offset] = lambda: text + code()

    def drop(self, statement: ast.stmt, why: str = "") -> None:
        start, end = self.lines(statement)
        self._edits[start, end] = ""
        if why:
            self.notes.append((statement.lineno, why))

    def replacement(self, start: int, end: int) -> New | None:
        return self._edits.get((start, end))

    def code(self, node: ast.AST) -> str:
        return self.render(*self.span(node))

    def render(self, start: int, end: int) -> str:
        return spliced(self.text, self._edits, (start, end))

    def rendered(self) -> str:
        return self.render(0, len(self.text))

    def block(self, statement: ast.stmt, indent: int) -> str:
        return shifted(self.render(*self.lines(statement)), statement.col_offset, indent)

    def keywords(self, by_name: Mapping[str, ast.expr], names: str = "") -> list[str]:
        """Writes the arguments that `names` selects, with their new names; see `renamed`."""
        new = renamed(names or " ".join(by_name))
        codes = {key: self.code(by_name[key]) for key in new if key in by_name}
        return [f"{new[key]}={code}" if new[key] else code for key, code in codes.items()]

    def code_at(self, node: ast.AST, indent: int) -> str:
        old = self.statement_of(node).col_offset
        first, newline, rest = self.code(node).partition("\n")
        return first + newline + shifted(rest, old, indent) if newline else first

    def is_spaced(self, statement: ast.stmt) -> bool:
        start, _ = self.lines(statement)
        return self.text[:start].endswith("\n\n")

    def problem(self, node: ast.AST, rule: str, why: str, way_out: str) -> None:
        assert rule in RULES, rule
        whole = isinstance(node, ast.Module)
        code = getattr(node, "name", None) or ast.unparse(getattr(node, "func", node))
        code = "" if whole else code.partition("\n")[0][:60]
        line = self.old_line(getattr(node, "lineno", 0))
        self.problems.add(Blocker(line, rule, code, why, way_out, self.name))

    def need_constant(self, node: ast.expr | None, rule: str, name: str, kind: str) -> None:
        if node is not None and not isinstance(node, ast.Constant):
            why, way_out = f"the value of {name} decides", f"Write the {kind} into the call"
            self.problem(node, rule, why, way_out)

    def old_line(self, line: int) -> int:
        return self._old_lines[line - 1] if line and self._old_lines else line

    def check(self) -> None:
        if self.problems:
            raise Refused(self.name, self.problems, "the Keras form")


def arguments(
    call: ast.Call, names: Iterable[str]
) -> tuple[dict[str, ast.expr], list[ast.keyword | ast.expr]]:
    """Returns a call's arguments by name, and the arguments that are not in `names`."""
    order = [*names]
    bound: dict[str, ast.expr] = {}
    others: list[ast.keyword | ast.expr] = []
    for number, each in enumerate(call.args):
        if isinstance(each, ast.Starred) or number >= len(order):
            others.append(each)
        else:
            bound[order[number]] = each
    for keyword in call.keywords:
        if keyword.arg in order:
            bound[str(keyword.arg)] = keyword.value
        else:
            others.append(keyword)
    return bound, others


def renamed(names: str) -> dict[str, str]:
    """Maps old to new names: "same old=new unnamed=" is {same: same, old: new, unnamed: ""}."""
    pairs = (each.partition("=") for each in names.split())
    return {old: new if is_other else old for old, is_other, new in pairs}


def every_argument(call: ast.Call, names: Iterable[str]) -> dict[str, ast.expr]:
    by_name = dict(zip(names, call.args, strict=False))
    return by_name | {str(each.arg): each.value for each in call.keywords}


def call_text(head: str, parts: Sequence[str], indent: int, prefix: str = "") -> str:
    """Writes a call, with one argument per line if it does not fit into one line."""
    line = f"{head}({', '.join(parts)})"
    if len(prefix) + indent + len(line) <= WIDTH and "\n" not in line:
        return line
    pad = " " * (indent + 4)
    inner = f",\n{pad}".join(part.replace("\n", "\n    ") for part in parts)
    return f"{head}(\n{pad}{inner})"


def short_name(full: str) -> str:
    if not is_of_tensorflow(full):
        return ""
    parts = full.split(".")
    if any(part in _STOCK for part in parts) and not full.endswith("disable_v2_behavior"):
        kept = parts[-2:] if len(parts) > 1 and parts[-2] == "ModeKeys" else parts[-1:]
        return ".".join(["estimator", *kept])
    if "tpu_embedding" in parts:
        return ".".join(parts[parts.index("tpu_embedding") :])
    below = parts[1:]
    while below[:1] == ["compat"]:
        below = below[2:]
    return ".".join(below)


def shifted(text: str, old: int, new: int) -> str:
    if old == new:
        return text
    lines = []
    for line in lines_of(text):
        if new > old:
            lines.append(" " * (new - old) + line if line.strip() else line)
        else:
            lines.append(re.sub(rf"^ {{0,{old - new}}}", "", line))
    return "".join(lines)


def names_in(node: ast.AST) -> set[str]:
    return {each.id for each in nodes_in(node, ast.Name) if isinstance(each.ctx, ast.Load)}


def _stored_in(node: ast.AST) -> set[str]:
    return {each.id for each in nodes_in(node, ast.Name) if isinstance(each.ctx, ast.Store)}


def all_names(node: ast.AST) -> set[str]:
    return {each.id for each in nodes_in(node, ast.Name)}


def bound_in(node: ast.AST) -> list[str]:
    """Returns the names bound inside a node, in order, without variables of comprehensions."""
    inner = set().union(*(all_names(each.target) for each in nodes_in(node, ast.comprehension)))
    stored = [
        each.id
        for each in nodes_in(node, ast.Name)
        if isinstance(each.ctx, ast.Store) and each.id not in inner
    ]
    functions = [each.name for each in nodes_in(node, ast.FunctionDef)]
    return [*dict.fromkeys([*stored, *functions])]


def _bound_by(function: ast.AST) -> set[str]:
    """Returns the parameters and variables of a function, and of the functions in it."""
    names = {*bound_in(function), *(each.arg for each in nodes_in(function, ast.arg))}
    return names - {getattr(function, "name", "")}


def free_name(wanted: str, taken: Collection[str]) -> str:
    numbered = (f"{wanted}_{number}" for number in itertools.count(2))
    return next(each for each in itertools.chain([wanted], numbered) if each not in taken)


def nodes_in(below: ast.AST, kind: type[_Node]) -> Iterator[_Node]:
    """Yields the nodes of one type in the order of `ast.walk`, but three times as fast."""
    nodes = [below]
    for node in nodes:
        for field in node._fields:
            value = getattr(node, field, None)
            if isinstance(value, list):
                nodes += (each for each in value if isinstance(each, ast.AST))
            elif isinstance(value, ast.AST):
                nodes.append(value)
        if isinstance(node, kind):
            yield node


def is_none(node: ast.expr | None) -> bool:
    return node is None or (isinstance(node, ast.Constant) and node.value is None)


def method_of(node: ast.AST | None) -> str:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr
    return ""


def is_docstring(item: ast.AST) -> bool:
    return (
        isinstance(item, ast.Expr)
        and isinstance(item.value, ast.Constant)
        and isinstance(item.value.value, str)
    )


def parameters_of(function: ast.AST) -> list[str]:
    if not isinstance(function, ast.FunctionDef):
        return []
    return [each.arg for each in (*function.args.args, *function.args.kwonlyargs)]


def returned_by(function: ast.FunctionDef | None) -> ast.expr | None:
    last = function.body[-1] if function is not None else None
    return last.value if isinstance(last, ast.Return) else None


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (first, first)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"
