"""A parsed program: where each node is in the text, and which statement it belongs to."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import libcst as cst
from libcst import metadata
from libcst.metadata import QualifiedName, QualifiedNameSource

from estimator_bridge import errors

MARK = "# estimator-bridge: "
"""The start of each comment that is added to a program."""


class ParsedProgram:
    """The syntax tree of a program.

    Attributes:
        name: how errors call the program.
        wrapper: the tree with its metadata.

    Raises:
        InvalidInput: the source is not Python 3.
    """

    def __init__(self, source: str, name: str) -> None:
        self.name = name
        try:
            self.wrapper = metadata.MetadataWrapper(cst.parse_module(source))
        except cst.ParserSyntaxError as error:
            raise errors.InvalidInput(f"{name} is no Python 3: {error}.") from error
        self.module: cst.Module = self.wrapper.module
        self.scopes: Mapping[cst.CSTNode, metadata.Scope | None] = self.wrapper.resolve(
            metadata.ScopeProvider
        )
        self._positions = self.wrapper.resolve(metadata.PositionProvider)
        self._parents = self.wrapper.resolve(metadata.ParentNodeProvider)

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
        """Returns the full names that a name or attribute may have, given the imports."""
        scope = self.scopes.get(node)
        return names_of_imports(scope.get_qualified_names_for(node)) if scope else []

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """Returns the node that a node is a direct part of; None for the module."""
        return self._parents.get(node)

    def statement_of(self, node: cst.CSTNode) -> cst.CSTNode:
        """Returns the innermost statement that contains a node, or is the node."""
        while not isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            node = self._parents[node]
        return node

    def function_of(self, node: cst.CSTNode) -> cst.CSTNode:
        """Returns the innermost function that contains a node."""
        while not isinstance(node, cst.FunctionDef):
            node = self._parents[node]
        return node

    def block_of(self, statement: cst.CSTNode) -> cst.CSTNode:
        """Returns the block, or the module, that a statement is in."""
        return self._parents[statement]

    def owner_of(self, statement: cst.CSTNode) -> cst.CSTNode:
        """Returns the compound statement, or the module, that a statement's block belongs to."""
        block = self._parents[statement]
        return block if isinstance(block, cst.Module) else self._parents[block]

    def call_of(self, function: cst.CSTNode) -> cst.Call | None:
        """Returns the call of a function that is named by a node; None if it is not called."""
        parent = self._parents[function]
        return parent if isinstance(parent, cst.Call) and parent.func is function else None

    def dotted_name_of(self, node: cst.CSTNode) -> cst.CSTNode:
        """Returns the longest dotted name that starts with a node."""
        while isinstance(self._parents[node], cst.Attribute):
            node = self._parents[node]
        return node

    def is_at_top(self, node: cst.CSTNode) -> bool:
        """Returns whether a node is evaluated when the module is imported."""
        return isinstance(self.scopes.get(node), metadata.GlobalScope)


def names_of_imports(names: Collection[QualifiedName]) -> list[str]:
    """Returns those of the qualified names that come from imports, sorted."""
    return sorted(each.name for each in names if each.source is QualifiedNameSource.IMPORT)


def code_of(node: cst.CSTNode) -> str:
    """Returns the source of a node in one line."""
    return " ".join(cst.Module([]).code_for_node(node).split())


def comment_lines(reasons: Collection[str]) -> list[cst.EmptyLine]:
    """Returns a line with a comment for each reason."""
    return [cst.EmptyLine(comment=cst.Comment(f"{MARK}{reason}.")) for reason in reasons]
