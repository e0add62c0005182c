"""Finds names that a program does not use yet, for new imports."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import libcst as cst

from estimator_bridge.migrate.syntax import import_statements
from estimator_bridge.migrate.syntax.modules import ALONE
from estimator_bridge.migrate.syntax.parsed_program import ParsedProgram

_LIBRARY = "tf2_engine.training."
_INSTALL = "estimator_bridge.install"

START = """\
from estimator_bridge import install
install.use_legacy_keras()  # Keras 2, before TensorFlow is asked for any.
"""


def free_name(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name = f"tf2_{name}"
    return name


def is_on_library(program: ParsedProgram) -> bool:
    """Whether a program is already in the tf2 form: it imports the library, and nothing of stock.

    The library is `tf2_engine.training`. A module of a package may import the bridge's `install`
    instead.
    """
    imported = [
        each
        for statement in program.find(*import_statements.KINDS)
        for each in import_statements.read(statement, program.modules)
    ]
    uses_stock = any(each.place or each.by_use for each in imported)
    signs = (_LIBRARY,) if program.modules is ALONE else (_LIBRARY, _INSTALL)
    return not uses_stock and any(f"{each.full}.".startswith(signs) for each in imported)


def names_in(program: ParsedProgram) -> Iterator[str]:
    for scope in set(program.scopes.values()):
        for assignment in scope.assignments if scope is not None else ():
            node = getattr(assignment, "node", None)
            if not isinstance(node, cst.Import | cst.ImportFrom):
                yield assignment.name
                continue
            for each in import_statements.read(node, program.modules):
                if not (each.place or each.by_use):
                    yield str(each.bound)
