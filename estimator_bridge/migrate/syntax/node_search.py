"""Finds all nodes of one type in a syntax tree.

LibCST's matchers do the same, but importing them takes half a second.
"""

from __future__ import annotations

from typing import Any

import libcst as cst


def find(root: cst.CSTNode, *kinds: type[cst.CSTNode]) -> list[Any]:
    finder = _Finder(kinds)
    root.visit(finder)
    return finder.found


def parents_in(root: cst.CSTNode) -> dict[cst.CSTNode, cst.CSTNode | None]:
    visitor = _Parents()
    root.visit(visitor)
    return visitor.parents


class _Visitor(cst.CSTVisitor):
    """Skips LibCST's lookup of a method for each node type. This lookup takes most of the time."""

    def on_leave(self, original_node: cst.CSTNode) -> None:
        pass

    def on_visit_attribute(self, node: cst.CSTNode, attribute: str) -> None:
        pass

    on_leave_attribute = on_visit_attribute


class _Finder(_Visitor):
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


class _Parents(_Visitor):
    def __init__(self) -> None:
        super().__init__()
        self._above: list[cst.CSTNode | None] = [None]
        self.parents: dict[cst.CSTNode, cst.CSTNode | None] = {}

    def on_visit(self, node: cst.CSTNode) -> bool:
        self.parents[node] = self._above[-1]
        self._above.append(node)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        self._above.pop()
