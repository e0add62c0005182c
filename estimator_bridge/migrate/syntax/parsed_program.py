"""Parses a program, and finds the position, the statement and the full names of its nodes."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeAlias

import libcst as cst
from libcst import metadata

from estimator_bridge import errors
from estimator_bridge.migrate.rewrite_report import TODO
from estimator_bridge.migrate.syntax.modules import ALONE, Modules
from estimator_bridge.migrate.syntax.name_flow import NameFlow
from estimator_bridge.migrate.syntax.node_search import parents_in

MARK = "# estimator-bridge: "
"""Starts each comment that is added to a program."""


_DEEPEST = 100

Scopes: TypeAlias = Mapping[cst.CSTNode, metadata.Scope | None]


class ParsedProgram:
    """The syntax tree of a program; raises InvalidInput if the source is not Python 3."""

    def __init__(self, source: str, name: str, modules: Modules = ALONE) -> None:
        self.source, self.name = source, name
        self.modules = modules
        tree = check_source(source, name)
        self.flow = NameFlow(tree, modules)
        self._ends = dict(_by_end(tree, source))
        try:
            module = cst.parse_module(source)
        except cst.ParserSyntaxError as error:
            raise errors.not_python(name, error) from error
        # The parser uses no node twice, so nothing needs to be copied.
        wrapper = metadata.MetadataWrapper(module, unsafe_skip_copy=True)
        self.module: cst.Module = wrapper.module
        found = wrapper.resolve_many([metadata.ScopeProvider, metadata.PositionProvider])
        self.scopes: Scopes = found[metadata.ScopeProvider]
        self._positions = found[metadata.PositionProvider]
        self._parents = parents_in(module)

    def find(self, *kinds: type[cst.CSTNode]) -> list[Any]:
        return [each for each in self._parents if isinstance(each, kinds)]

    def position(self, node: cst.CSTNode) -> metadata.CodeRange:
        return self._positions[node]

    def line(self, node: cst.CSTNode) -> int:
        return int(self._positions[node].start.line)

    def last_line(self, statement: cst.CSTNode) -> int:
        body = getattr(statement, "body", None)
        if isinstance(body, cst.IndentedBlock) and not getattr(statement, "orelse", None):
            return max(self.last_line(each) for each in body.body)
        return int(self._positions[statement].end.line)

    def indent(self, node: cst.CSTNode) -> int:
        return int(self._positions[node].start.column)

    def imported_names(self, node: cst.CSTNode) -> list[str]:
        """Lists the full names that a node may have; follows imports and data flow."""
        found = self.in_flow(node)
        return [] if found is None else self.flow.full_names(found)

    def full_names_of(self, place: cst.CSTNode, dotted: str) -> list[str]:
        found = self._ends.get(self._end(place))
        return [] if found is None else self.flow.names_at(found, dotted)

    def in_flow(self, node: cst.CSTNode) -> ast.AST | None:
        """Finds the node of the `ast` tree that ends where this LibCST node ends."""
        kinds = {cst.Name: ast.Name, cst.Attribute: ast.Attribute}
        last = node.attr if isinstance(node, cst.Attribute) else node
        found = self._ends.get(self._end(last))
        return found if type(node) in kinds and isinstance(found, kinds[type(node)]) else None

    def is_alias(self, node: cst.CSTNode) -> bool:
        found = self.in_flow(node)
        return found is not None and self.flow.is_alias(found)

    def is_followed(self, value: cst.CSTNode) -> bool:
        found = self.in_flow(value)
        return found is not None and self.flow.is_followed(found)

    def is_stored(self, name: cst.CSTNode) -> bool:
        return isinstance(getattr(self.in_flow(name), "ctx", None), ast.Store)

    def _end(self, node: cst.CSTNode) -> tuple[int, int]:
        end = self._positions[node].end
        return int(end.line), int(end.column)

    def parent(self, node: cst.CSTNode | None) -> cst.CSTNode | None:
        return self._parents.get(node)

    def in_its_quotes(self, code: str) -> str:
        """Changes `'` to `"` in `code` if most strings of this program use `"`."""
        quotes = [each.quote for each in self.find(cst.SimpleString)]
        return code.replace("'", '"') if quotes.count('"') > quotes.count("'") else code

    def enclosing(self, node: cst.CSTNode | None, *kinds: type[cst.CSTNode]) -> cst.CSTNode | None:
        while node is not None and not isinstance(node, kinds):
            node = self.parent(node)
        return node

    def statement_of(self, node: cst.CSTNode) -> cst.CSTNode:
        return self.enclosing(node, cst.SimpleStatementLine, cst.BaseCompoundStatement)

    def dotted_name_of(self, node: cst.CSTNode) -> cst.CSTNode:
        above = self.parent(node)
        while isinstance(above, cst.Attribute):
            node, above = above, self.parent(above)
        return node


def parsed(source: str, name: str, modules: Modules = ALONE) -> ParsedProgram:
    """Parses a program. The last single file is cached, because several forms may be tried."""
    return _alone(source, name) if modules is ALONE else ParsedProgram(source, name, modules)


@functools.lru_cache(maxsize=1)
def _alone(source: str, name: str) -> ParsedProgram:
    return ParsedProgram(source, name)


def _by_end(tree: ast.AST, source: str) -> Iterator[tuple[tuple[int, int], ast.expr]]:
    lines = re.split("\r\n|\n|\r", source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute | ast.Constant):
            line, column = node.end_lineno or 1, node.end_col_offset or 0
            before = lines[line - 1].encode()[:column]
            yield (line, len(before.decode(errors="ignore"))), node


def check_source(source: str, name: str) -> ast.Module:
    """Raises InvalidInput if Python would not run a program, or if its nesting is too deep."""
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
    return " ".join(cst.Module([]).code_for_node(node).split())


def keyword_of(argument: cst.Arg) -> str:
    return "" if argument.keyword is None else str(argument.keyword.value)


def comment_lines(rule: str, reasons: Collection[str]) -> list[cst.EmptyLine]:
    return [cst.EmptyLine(comment=cst.Comment(f"{TODO} {rule}: {each}.")) for each in reasons]
