"""Finds nodes in a syntax tree by their kind.

LibCST's matchers do the same, but importing them takes half a second.
"""

from __future__ import annotations

from typing import Any

import libcst as cst


def find(root: cst.CSTNode, *kinds: type[cst.CSTNode]) -> list[Any]:
    """Lists the nodes of these kinds in a tree, including the root, in the order of the text."""
    finder = _Finder(kinds)
    root.visit(finder)
    return finder.found


class _Finder(cst.CSTVisitor):
    def __init__(self, kinds: tuple[type[cst.CSTNode], ...]) -> None:
        super().__init__()
        self._kinds = kinds
        self._in_expressions = any(issubclass(kind, cst.BaseExpression) for kind in kinds)
        self.found: list[cst.CSTNode] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, self._kinds):
            self.found.append(node)
        # No statement is part of an expression.
        return self._in_expressions or not isinstance(node, cst.BaseExpression)

    def on_leave(self, original_node: cst.CSTNode) -> None:
        """Skips the search for a method of this node's kind."""
