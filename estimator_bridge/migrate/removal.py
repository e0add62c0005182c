"""Which statements of a program cannot be carried, and what falls with them."""

from __future__ import annotations

from typing import Any

import libcst as cst
from libcst import metadata


class Removal:
    """Statements that are to be commented out: some for a reason, others since they use those.

    Args:
        wrapper: of the program.
    """

    def __init__(self, wrapper: metadata.MetadataWrapper) -> None:
        self._parents = wrapper.resolve(metadata.ParentNodeProvider)
        self._scopes = wrapper.resolve(metadata.ScopeProvider)
        self._dead: set[Any] = set()
        self.reasons: dict[Any, str] = {}

    def bury(self, node: Any) -> None:
        """Says that an expression goes, though its statement stays: a left-out argument."""
        self._dead.add(node)

    def is_gone(self, node: Any) -> bool:
        """Returns whether a node is inside of what goes."""
        while node is not None:
            if node in self._dead or node in self.reasons:
                return True
            node = self._parents.get(node)
        return False

    def remove(self, node: Any, why: str) -> None:
        """Removes the statement of a node, and what cannot be without it.

        That is the function whose result it is, and the statements that use what it binds where
        nothing else binds it.
        """
        if self.is_gone(node):
            return
        statement = self.statement_of(node)
        if isinstance(statement, cst.SimpleStatementLine) and any(
            isinstance(each, cst.Return) for each in statement.body
        ):
            self.remove(self._function_of(statement), why)
            return
        self.reasons[statement] = why
        for name, scope in self._bound(statement):
            assignments = [each for each in scope[name] if each.scope is scope]
            if not all(self.is_gone(each.node) for each in assignments):
                continue
            for assignment in assignments:
                for access in assignment.references:
                    self.remove(access.node, f"{name} is left out, which it uses")

    def statement_of(self, node: Any) -> Any:
        """Returns the innermost statement that a node is in, or is."""
        while not isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            node = self._parents[node]
        return node

    def block_of(self, statement: Any) -> Any:
        """Returns the block, or the module, whose statement it is."""
        return self._parents[statement]

    def is_at_top(self, node: Any) -> bool:
        """Returns whether a node is run when the module is imported."""
        return isinstance(self._scopes.get(node), metadata.GlobalScope)

    def call_of(self, node: Any) -> Any:
        """Returns the call whose function a node is; None if it is not called."""
        parent = self._parents[node]
        return parent if isinstance(parent, cst.Call) and parent.func is node else None

    def whole(self, node: Any) -> Any:
        """Returns the longest name with dots that a name begins."""
        while isinstance(self._parents[node], cst.Attribute):
            node = self._parents[node]
        return node

    def owner(self, statement: Any) -> Any:
        """Returns the compound statement, or the module, that a statement's block belongs to."""
        block = self._parents[statement]
        return block if isinstance(block, cst.Module) else self._parents[block]

    def _function_of(self, node: Any) -> Any:
        while not isinstance(node, cst.FunctionDef):
            node = self._parents[node]
        return node

    def _bound(self, statement: Any) -> list[tuple[str, Any]]:
        if isinstance(statement, cst.FunctionDef | cst.ClassDef):
            return [(statement.name.value, self._scopes[statement])]
        found: list[tuple[str, Any]] = []
        scopes = self._scopes

        class Targets(cst.CSTVisitor):
            def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
                names = (
                    [each.value for each in node.target.elements]
                    if isinstance(node.target, cst.Tuple | cst.List)
                    else [node.target]
                )
                found.extend(
                    (each.value, scopes[each]) for each in names if isinstance(each, cst.Name)
                )

        statement.visit(Targets())
        return found
