"""Which statements of a program are removed: those without a counterpart, and their users."""

from __future__ import annotations

import libcst as cst
from libcst import metadata

from estimator_bridge.migrate.parsed_program import ParsedProgram


class Removal:
    """The statements that are to be commented out.

    Attributes:
        reasons: why, by statement.
    """

    def __init__(self, program: ParsedProgram) -> None:
        self._program = program
        self._removed_arguments: set[cst.CSTNode] = set()
        self.reasons: dict[cst.CSTNode, str] = {}

    def remove_argument(self, argument: cst.Arg) -> None:
        """Removes an argument of a call; the statement stays."""
        self._removed_arguments.add(argument)

    def is_removed(self, node: cst.CSTNode | None) -> bool:
        """Returns whether a node is inside of something that is removed."""
        while node is not None:
            if node in self._removed_arguments or node in self.reasons:
                return True
            node = self._program.parent(node)
        return False

    def remove(self, node: cst.CSTNode, reason: str) -> None:
        """Removes the statement of a node, and those that depend on it.

        A function is removed with a statement that returns its result. A statement that uses a
        name is removed if no other statement binds the name.
        """
        if self.is_removed(node):
            return
        statement = self._program.statement_of(node)
        if isinstance(statement, cst.SimpleStatementLine) and any(
            isinstance(each, cst.Return) for each in statement.body
        ):
            self.remove(self._program.function_of(statement), reason)
            return
        self.reasons[statement] = reason
        for name, scope in self._bound_names(statement):
            assignments = [each for each in scope[name] if each.scope is scope]
            if not all(self.is_removed(each.node) for each in assignments):
                continue
            for assignment in assignments:
                for access in assignment.references:
                    self.remove(access.node, f"It uses {name}, which is left out")

    def _bound_names(self, statement: cst.CSTNode) -> list[tuple[str, metadata.Scope]]:
        """Returns the names that a statement binds, with their scopes."""
        scopes = self._program.scopes
        if isinstance(statement, cst.FunctionDef | cst.ClassDef):
            return [(statement.name.value, scopes[statement])]
        targets = _Targets()
        statement.visit(targets)
        return [(name.value, scopes[name]) for name in targets.names]


class _Targets(cst.CSTVisitor):
    """Collects the names that assignments bind."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[cst.Name] = []

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
        target = node.target
        several = isinstance(target, cst.Tuple | cst.List)
        parts = [each.value for each in target.elements] if several else [target]
        self.names += [each for each in parts if isinstance(each, cst.Name)]
