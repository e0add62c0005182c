"""A parsed program: where each node is in the text, and which statement it belongs to."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from typing import TypeAlias

import libcst as cst
from libcst import metadata

from estimator_bridge import errors
from estimator_bridge.migrate.rewrite_report import TODO
from estimator_bridge.migrate.syntax.modules import ALONE, Modules
from estimator_bridge.migrate.syntax.name_flow import NameFlow
from estimator_bridge.migrate.syntax.node_search import find

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
        tree = check_source(source, name)
        self.flow = NameFlow(tree, modules)
        self._ends = dict(_by_end(tree, source))
        try:
            module = cst.parse_module(source)
        except cst.ParserSyntaxError as error:
            raise errors.not_python(name, error) from error
        # The parser uses no node twice, so that there is nothing to copy.
        wrapper = metadata.MetadataWrapper(module, unsafe_skip_copy=True)
        self.module: cst.Module = wrapper.module
        found = wrapper.resolve_many(
            [metadata.ScopeProvider, metadata.PositionProvider, metadata.ParentNodeProvider]
        )
        self.scopes: Scopes = found[metadata.ScopeProvider]
        self._positions = found[metadata.PositionProvider]
        self._parents = found[metadata.ParentNodeProvider]

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
        """Returns the full names that a name or attribute may have, by imports and the flow."""
        found = self.in_flow(node)
        return [] if found is None else self.flow.full_names(found)

    def full_names_of(self, place: cst.CSTNode, dotted: str) -> list[str]:
        """Returns the full names that a dotted name may have where a node is."""
        found = self._ends.get(self._end(place))
        return [] if found is None else self.flow.names_at(found, dotted)

    def in_flow(self, node: cst.CSTNode) -> ast.AST | None:
        """Returns the same name or attribute in `flow`: it is the one that ends there."""
        kinds = {cst.Name: ast.Name, cst.Attribute: ast.Attribute}
        last = node.attr if isinstance(node, cst.Attribute) else node
        found = self._ends.get(self._end(last))
        return found if type(node) in kinds and isinstance(found, kinds[type(node)]) else None

    def is_alias(self, node: cst.CSTNode) -> bool:
        """Returns whether a name or attribute stands for a full name that it is given."""
        found = self.in_flow(node)
        return found is not None and self.flow.is_alias(found)

    def is_followed(self, value: cst.CSTNode) -> bool:
        """Returns whether the names are known that a dotted name is given, wherever it goes."""
        found = self.in_flow(value)
        return found is not None and self.flow.is_followed(found)

    def is_stored(self, name: cst.CSTNode) -> bool:
        """Returns whether a name or attribute is assigned to where it stands."""
        return isinstance(getattr(self.in_flow(name), "ctx", None), ast.Store)

    def _end(self, node: cst.CSTNode) -> tuple[int, int]:
        end = self._positions[node].end
        return int(end.line), int(end.column)

    def parent(self, node: cst.CSTNode | None) -> cst.CSTNode | None:
        """Returns the node that a node is a direct part of; None for the module."""
        return self._parents.get(node)

    def in_its_quotes(self, code: str) -> str:
        """Returns code that has `'` around its strings with `"`, if more strings here have that."""
        quotes = [each.quote for each in find(self.module, cst.SimpleString)]
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


def _by_end(tree: ast.AST, source: str) -> Iterator[tuple[tuple[int, int], ast.expr]]:
    """Yields names, attributes and strings with the line and column where they end."""
    lines = re.split("\r\n|\n|\r", source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute | ast.Constant):
            line, column = node.end_lineno or 1, node.end_col_offset or 0
            before = lines[line - 1].encode()[:column]
            yield (line, len(before.decode(errors="ignore"))), node


def check_source(source: str, name: str) -> ast.Module:
    """Returns the tree of a program.

    Raises InvalidInput if Python would not run it, or it is too deeply nested to parse.

    Python refuses some programs only when it compiles them: a keyword that is given twice, a
    `return` outside of a function.
    """
    try:
        tree = ast.parse(source)
        _check_depth(tree, name)
        compile(tree, name, "exec", dont_inherit=True)
        return tree
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


def comment_lines(rule: str, reasons: Collection[str]) -> list[cst.EmptyLine]:
    """Returns a line that leaves something to a person for each reason."""
    return [cst.EmptyLine(comment=cst.Comment(f"{TODO} {rule}: {each}.")) for each in reasons]
