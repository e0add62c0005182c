"""Holds the state of one rewrite to the tf2 form: edits, comments, blockers and the report."""

from __future__ import annotations

import libcst as cst

from estimator_bridge.migrate.blockers import Blockers
from estimator_bridge.migrate.rewrite_report import Line, NoteKind
from estimator_bridge.migrate.selection import Selection
from estimator_bridge.migrate.syntax import names
from estimator_bridge.migrate.syntax.edits import Edits
from estimator_bridge.migrate.syntax.parsed_program import ParsedProgram, code_of
from estimator_bridge.migrate.syntax.removal import Removal
from estimator_bridge.migrate.tf2 import tf2_rules
from estimator_bridge.migrate.tf2.comments import Comments
from estimator_bridge.migrate.tf2.tf2_rules import NameRule


class Tf2Edits:
    """The changes of one program and their lines in the report.

    Attributes:
        imported: the names to import, by module.
        keras: whether a `TrainerModel` replaces the estimators.
        models: the names to which a `TrainerModel` is assigned.
        left: the first part of each dotted name that stays because its rule is not selected.
    """

    def __init__(
        self, program: ParsedProgram, edits: Edits, selected: Selection, *, keras: bool = False
    ) -> None:
        self.program = program
        self.keras = keras
        self.edits = edits
        self.removal = Removal(program)
        self.comments = Comments(program, edits, self.removal)
        self.blockers = Blockers(program, self.removal)
        self.imported: dict[str, set[str]] = {}
        self.left: set[str] = set()
        self.models: set[str] = set()
        self._selected = selected
        self._taken = set(names.names_in(program))
        self._lines: list[tuple[cst.CSTNode, Line]] = []

    def rule_of(self, full: str) -> NameRule | None:
        return tf2_rules.of_name(full, keras=self.keras)

    def takes(self, node: cst.CSTNode, rule_id: str, rule: NameRule) -> bool:
        if self._selected.takes(rule_id, rule.effect):
            return True
        self.say(node, "skipped", code_of(node).partition("(")[0], "", rule_id)
        root = node.func if isinstance(node, cst.Call) else node
        while isinstance(root, cst.Attribute):
            root = root.value
        if isinstance(root, cst.Name):
            self.left.add(root.value)
        return False

    def takes_other(self, rule_id: str) -> bool:
        return self._selected.takes(rule_id, tf2_rules.OTHERS[rule_id].effect)

    def import_name(self, name: str, module: str, node: cst.CSTNode | None = None) -> str:
        """Imports a name from a module and returns the text to write in place of `node`.

        If the program already uses this name, the text may include the module, as in
        `training.minimize`. Without `node`, it never includes the module.
        """
        above, _, last = module.rpartition(".")
        scope = None if node is None else self.program.scopes.get(node)
        is_free = scope is not None and last not in scope
        if name in self._taken and module == tf2_rules.TRAINING and is_free:
            self.imported.setdefault(above, set()).add(last)
            return f"{last}.{name}"
        new = names.free_name(name, self._taken)
        self.imported.setdefault(module, set()).add(name if new == name else f"{name} as {new}")
        return new

    def say(
        self, node: cst.CSTNode, kind: NoteKind, old: str, new: str, rule: str, why: str = ""
    ) -> None:
        """Adds a line to the report. The line is dropped if the code of `node` is left out."""
        self._lines.append((node, Line(self.program.line(node), kind, old, new, why, rule)))

    def lines(self) -> list[Line]:
        return [line for node, line in self._lines if not self.removal.is_removed(node)]
