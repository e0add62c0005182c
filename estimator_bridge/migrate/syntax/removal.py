"""Finds the statements and arguments to leave out, and what depends on them."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst import metadata

from estimator_bridge.migrate.syntax.node_search import find
from estimator_bridge.migrate.syntax.parsed_program import ParsedProgram


class Removal:
    """Collects what to comment out: statements, with the reason for each, and single arguments.

    Attributes:
        harmless: the statements whose removal loses nothing.
        rules: maps a statement to the id of the rule that removes it.
        users: maps a statement to the nodes that use its names, if it is removed because only
            removed code uses them.
    """

    def __init__(self, program: ParsedProgram) -> None:
        self._program = program
        self.arguments: set[cst.CSTNode] = set()
        self.reasons: dict[cst.CSTNode, str] = {}
        self._causes: dict[cst.CSTNode, str] = {}
        self.harmless: set[cst.CSTNode] = set()
        self.rules: dict[cst.CSTNode, str] = {}
        self.users: dict[cst.CSTNode, list[cst.CSTNode]] = {}

    def removed_part(self, node: cst.CSTNode | None) -> cst.CSTNode | None:
        outermost, each = None, node
        while each is not None:
            if each in self.arguments or each in self.reasons:
                outermost = each
            each = self._program.parent(each)
        return outermost

    def is_removed(self, node: cst.CSTNode | None) -> bool:
        return self.removed_part(node) is not None

    def cause(self, statement: cst.CSTNode) -> str:
        reason, cause = self.reasons[statement], self._causes.get(statement, "")
        return reason if not cause or cause.endswith(f": {reason}") else f"{reason} ({cause})"

    def remove(self, node: cst.CSTNode, reason: str, rule: str = "", cause: str = "") -> None:
        """Removes the statement of a node and the statements that depend on it.

        If the statement is a `return`, the whole function is removed. If no remaining statement
        binds a name, the statements that use the name are removed. `cause` is the reason for
        removing the first of all these statements.
        """
        if self.is_removed(node):
            return
        statement = self._program.statement_of(node)
        if isinstance(statement, cst.SimpleStatementLine) and any(
            isinstance(each, cst.Return) for each in statement.body
        ):
            self.remove(self._program.enclosing(statement, cst.FunctionDef), reason, rule, cause)
            return
        self.reasons[statement] = reason
        cause = cause or f"line {self._program.line(statement)}: {reason}"
        self._causes[statement] = cause
        if rule:
            self.rules[statement] = rule
        for name, scope in self._bound_names(statement):
            assignments = [each for each in scope[name] if each.scope is scope]
            if not all(self.is_removed(each.node) for each in assignments):
                continue
            for assignment in assignments:
                for access in assignment.references:
                    why = f"It uses {name}, which is left out"
                    self.remove(access.node, why, cause=cause)

    def remove_harmless(self, statement: cst.CSTNode, reason: str, rule: str) -> None:
        self.reasons[statement] = reason
        self.rules[statement] = rule
        self.harmless.add(statement)

    def _bound_names(self, statement: cst.CSTNode) -> list[tuple[str, metadata.Scope]]:
        scopes = self._program.scopes
        if isinstance(statement, cst.FunctionDef | cst.ClassDef):
            return [(statement.name.value, scopes[statement])]
        names: list[tuple[str, metadata.Scope]] = []
        for assignment in find(statement, cst.AssignTarget):
            target = assignment.target
            several = isinstance(target, cst.Tuple | cst.List)
            parts = [each.value for each in target.elements] if several else [target]
            names += [(each.value, scopes[each]) for each in parts if isinstance(each, cst.Name)]
        return names

    def remove_dead(self) -> None:
        """Removes local functions and plain values that are used only by removed code."""
        is_new = True
        while is_new:
            is_new = False
            for scope in {each for each in self._program.scopes.values() if each is not None}:
                for name in {each.name for each in scope.assignments}:
                    is_new |= self._remove_dead(scope, name)

    def _remove_dead(self, scope: metadata.Scope, name: str) -> bool:
        assignments = [each for each in scope[name] if each.scope is scope]
        references = [access.node for each in assignments for access in each.references]
        statements = [self._dead_statement(getattr(each, "node", None)) for each in assignments]
        if not references or not all(map(self.is_removed, references)) or not all(statements):
            return False
        for statement in statements:
            self.reasons[statement] = f"Only what is left out uses {name}"
            self.users[statement] = references
        return bool(statements)

    def _dead_statement(self, node: cst.CSTNode | None) -> cst.CSTNode | None:
        if node is None or self.is_removed(node):
            return None
        statement = self._program.statement_of(node)
        if isinstance(self._program.parent(statement), cst.Module | None):
            return None  # other modules may use it
        if isinstance(node, cst.FunctionDef):
            return None if node.decorators else node
        if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
            return None
        assign = statement.body[0]
        simple = isinstance(assign, cst.Assign) and len(assign.targets) == 1
        if not simple or assign.targets[0].target is not node or not is_pure(assign.value):
            return None
        return statement

    def collapse(self) -> None:
        """Removes each `if` statement whose whole body is removed."""
        # The innermost `if` statements come last in the order of the program.
        for each in reversed(self._program.find(cst.If)):
            if each.orelse is not None:
                continue
            inner = [*getattr(each.body, "body", ())]
            removed = bool(inner) and all(one in self.reasons for one in inner)
            elif_ = isinstance(self._program.parent(each), cst.If)
            if not removed or elif_ or not is_pure(each.test):
                continue
            if all(one in self.harmless for one in inner):
                self.harmless.add(each)
            self.reasons[each] = self.reasons[inner[0]]
            self._causes[each] = self._causes.get(inner[0], "")
            self.rules[each] = self.rules.get(inner[0], "")

    def unbound(self) -> Iterator[tuple[cst.CSTNode, str, cst.CSTNode]]:
        """Yields (removed statement, name, use) for names that may be unbound at their use."""
        for statement in self.reasons.keys() - self.harmless:
            for name, scope in self._bound_names(statement):
                others = [
                    each.node
                    for each in scope[name]
                    if each.scope is scope and not self.is_removed(each.node)
                ]
                if any(self._binds_at(each, statement) for each in others):
                    continue
                for access in scope.accesses[name] if others else ():
                    use = access.node
                    if not self.is_removed(use) and not any(
                        self._binds_at(each, use) for each in others
                    ):
                        yield statement, name, use
                        break

    def _binds_at(self, binding: cst.CSTNode, node: cst.CSTNode) -> bool:
        statement = self._program.statement_of(binding)
        block = self._program.parent(statement)
        above: cst.CSTNode | None = node
        while above is not None:
            above = self._program.parent(above)
            if above is statement:
                return True
            if above is block:
                return self._program.line(binding) <= self._program.line(node)
        return False


_READING = ("get", "getenv", "bool", "len", "isinstance", "hasattr")
"""Functions and methods that have no side effects."""


def is_pure(expression: cst.CSTNode) -> bool:
    calls = find(expression, cst.Call)
    names = [getattr(each.func, "attr", each.func) for each in calls]
    reads = all(isinstance(each, cst.Name) and each.value in _READING for each in names)
    return reads and not find(expression, cst.Await, cst.NamedExpr, cst.Yield)
