"""A parsed program: where each node is in the text, and which statement it belongs to."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from typing import TypeAlias

import libcst as cst
from libcst import matchers, metadata
from libcst.helpers import get_full_name_for_node

from estimator_bridge import errors
from estimator_bridge.migrate.syntax.modules import ALONE, Modules

_IMPORT = metadata.QualifiedNameSource.IMPORT

MARK = "# estimator-bridge: "
"""The start of each comment that is added to a program."""


_DEEPEST = 100

Scopes: TypeAlias = Mapping[cst.CSTNode, metadata.Scope | None]


class ParsedProgram:
    """The syntax tree of a program; InvalidInput if the source is not Python 3.

    Args:
        name: how errors call the program.
        modules: the other modules of its package.
    """

    def __init__(self, source: str, name: str, modules: Modules = ALONE) -> None:
        self.name = name
        self.modules = modules
        check_source(source, name)
        try:
            wrapper = metadata.MetadataWrapper(cst.parse_module(source))
        except cst.ParserSyntaxError as error:
            raise errors.not_python(name, error) from error
        self.module: cst.Module = wrapper.module
        self.scopes: Scopes = wrapper.resolve(metadata.ScopeProvider)
        self._positions = wrapper.resolve(metadata.PositionProvider)
        self._parents = wrapper.resolve(metadata.ParentNodeProvider)

    def position(self, node: cst.CSTNode) -> metadata.CodeRange:
        """Returns the first and the last line and column of a node."""
        return self._positions[node]

    def line(self, node: cst.CSTNode) -> int:
        """Returns the line where a node starts; lines count from 1."""
        return int(self._positions[node].start.line)

    def last_line(self, statement: cst.CSTNode) -> int:
        """Returns the last line of a statement, without the comments below its block."""
        body = getattr(statement, "body", None)
        if isinstance(body, cst.IndentedBlock) and not getattr(statement, "orelse", None):
            return max(self.last_line(each) for each in body.body)
        return int(self._positions[statement].end.line)

    def indent(self, node: cst.CSTNode) -> int:
        """Returns the column where a node starts."""
        return int(self._positions[node].start.column)

    def imported_names(self, node: cst.CSTNode) -> list[str]:
        """Returns the full names that a name or attribute may have, given imports and aliases."""
        return sorted(self._full_names(node, frozenset()))

    def full_names_of(self, place: cst.CSTNode, dotted: str) -> list[str]:
        """Returns the full names that a dotted name may have where a node is."""
        scope = self.scopes.get(place)
        return [] if scope is None else sorted(self._resolved(scope, dotted, dotted, frozenset()))

    def alias_of(self, name: cst.CSTNode) -> str | None:
        """Returns the full name that a name is assigned to, wherever it is assigned; or None."""
        scope = self.scopes.get(name)
        if not isinstance(name, cst.Name) or scope is None:
            return None
        (full,) = self._aliased(scope, name.value, frozenset()) or (None,)
        return full

    def aliases_of(self, value: cst.CSTNode) -> list[cst.Name]:
        """Returns the names that stand for a dotted name because it is assigned to them."""
        statement = self.parent(value)
        if not isinstance(statement, cst.Assign | cst.AnnAssign):
            return []
        targets = statement.targets if isinstance(statement, cst.Assign) else [statement]
        names = [each.target for each in targets]
        return names if all(map(self.alias_of, names)) else []

    def _full_names(self, node: cst.CSTNode, seen: frozenset[str]) -> set[str]:
        scope = self.scopes.get(node)
        if scope is None:
            return set()
        return self._resolved(scope, node, str(get_full_name_for_node(node) or ""), seen)

    def _resolved(
        self, scope: metadata.Scope, node: cst.CSTNode | str, dotted: str, seen: frozenset[str]
    ) -> set[str]:
        """Returns the full names of a node, or of a dotted name, in a scope."""
        qualified = scope.get_qualified_names_for(node)
        names = {self.modules.full(each.name) for each in qualified if each.source is _IMPORT}
        root, _, rest = dotted.partition(".")
        if names or not root or root in seen:
            return names
        below = f".{rest}" if rest else ""
        return {f"{each}{below}" for each in self._aliased(scope, root, seen)}

    def _aliased(self, scope: metadata.Scope, name: str, seen: frozenset[str]) -> set[str]:
        """Returns the full name that all assignments of a name agree on, if they do."""
        names: set[str] = set()
        for assignment in scope[name]:
            target = self.parent(getattr(assignment, "node", None))
            if isinstance(target, cst.AssignTarget):
                target = self.parent(target)
            if not isinstance(target, cst.Assign | cst.AnnAssign):
                return set()
            if not isinstance(target.value, cst.Name | cst.Attribute):
                return set()
            full = self._full_names(target.value, seen | {name})
            if len(full) != 1:
                return set()
            names |= full
        return names if len(names) == 1 else set()

    def parent(self, node: cst.CSTNode | None) -> cst.CSTNode | None:
        """Returns the node that a node is a direct part of; None for the module."""
        return self._parents.get(node)

    def in_its_quotes(self, code: str) -> str:
        """Returns code that has `'` around its strings with `"`, if more strings here have that."""
        quotes = [each.quote for each in matchers.findall(self.module, matchers.SimpleString())]
        return code.replace("'", '"') if quotes.count('"') > quotes.count("'") else code

    def enclosing(self, node: cst.CSTNode | None, *kinds: type[cst.CSTNode]) -> cst.CSTNode | None:
        """Returns the innermost node of some kinds that contains a node, or is it; or None."""
        while node is not None and not isinstance(node, kinds):
            node = self.parent(node)
        return node

    def statement_of(self, node: cst.CSTNode) -> cst.CSTNode:
        """Returns the innermost statement that contains a node, or is the node."""
        return self.enclosing(node, cst.SimpleStatementLine, cst.BaseCompoundStatement)

    def dotted_name_of(self, node: cst.CSTNode) -> cst.CSTNode:
        """Returns the longest dotted name that starts with a node."""
        while isinstance(self._parents[node], cst.Attribute):
            node = self._parents[node]
        return node


def check_source(source: str, name: str) -> None:
    """Raises InvalidInput if Python would not run a program, or it is too deeply nested to parse.

    Python refuses some programs only when it compiles them: a keyword that is given twice, a
    `return` outside of a function.
    """
    try:
        tree = ast.parse(source)
        _check_depth(tree, name)
        compile(tree, name, "exec", dont_inherit=True)
    except (RecursionError, MemoryError) as error:
        raise errors.InvalidInput(f"{name} is too deeply nested: {error}.") from error
    except (SyntaxError, ValueError) as error:
        raise errors.not_python(name, error) from error


def _check_depth(tree: ast.AST, name: str) -> None:
    nodes = [(tree, 0)]
    while nodes:
        node, depth = nodes.pop()
        if depth > _DEEPEST:
            raise errors.InvalidInput(
                f"{name}, line {getattr(node, 'lineno', 0)}: code is nested more than {_DEEPEST} "
                "levels deep. Split the expression."
            )
        nodes.extend((child, depth + 1) for child in ast.iter_child_nodes(node))


def code_of(node: cst.CSTNode) -> str:
    """Returns the source of a node in one line."""
    return " ".join(cst.Module([]).code_for_node(node).split())


def keyword_of(argument: cst.Arg) -> str:
    """Returns the name that an argument is passed by; "" if it has none."""
    return "" if argument.keyword is None else str(argument.keyword.value)


def comment_lines(reasons: Collection[str]) -> list[cst.EmptyLine]:
    """Returns a line with a comment for each reason."""
    return [cst.EmptyLine(comment=cst.Comment(f"{MARK}{reason}.")) for reason in reasons]
