"""Renames a package inside its own modules, because a migrated package gets a new name."""

from __future__ import annotations

import libcst as cst
from libcst.helpers import get_full_name_for_node

from estimator_bridge.migrate.syntax.edits import Edits
from estimator_bridge.migrate.syntax.parsed_program import ParsedProgram


def renamed(source: str, name: str, old: str, new: str) -> str:
    """Renames a package in a module's imports, and in full names such as `package.module.name`."""
    program = ParsedProgram(source, name)
    edits = Edits(program, source)
    program.module.visit(_Renaming(program, edits, old, new))
    return edits.apply()


class _Renaming(cst.CSTVisitor):
    def __init__(self, program: ParsedProgram, edits: Edits, old: str, new: str) -> None:
        super().__init__()
        self._program, self._edits = program, edits
        self._old, self._new = old, new

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        if not node.relative and node.module is not None:
            self._rename(node.module)
        return False

    def visit_ImportAlias(self, node: cst.ImportAlias) -> bool:
        self._rename(node.name)
        return False

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        return not self._rename_use(node)

    def visit_Name(self, node: cst.Name) -> None:
        self._rename_use(node)

    def _rename_use(self, node: cst.Name | cst.Attribute) -> bool:
        text = get_full_name_for_node(node)
        return (
            text == self._old and text in self._program.imported_names(node) and self._rename(node)
        )

    def _rename(self, node: cst.CSTNode) -> bool:
        text = str(get_full_name_for_node(node))
        if text != self._old and not text.startswith(f"{self._old}."):
            return False
        start, _ = self._edits.span(node)
        self._edits.replace(start, start + len(self._old), self._new)
        return True
