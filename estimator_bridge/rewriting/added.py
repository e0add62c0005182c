"""The text that the second form adds to a program, under names that are free in it."""

from __future__ import annotations

import ast
import pathlib
import re

import libcst as cst
from libcst import metadata

from estimator_bridge.rewriting import imports

_PROGRAM = pathlib.Path(__file__).with_name("tf2_program.py")

START = """\
from estimator_bridge import install
install.use_legacy_keras()  # Keras 2, before TensorFlow is asked for any.
"""


def program(names: dict[str, str]) -> tuple[str, str]:
    """Returns the imports and the rest of what is added, under the given names."""
    text = _PROGRAM.read_text(encoding="utf-8")
    head = re.search(r"^import .*?(?=^v1 = )", text, re.DOTALL | re.MULTILINE)
    assert head is not None
    parts = [head.group().replace("\n\n", "\n"), text[head.end() :]]
    for old, new in names.items():
        if old != new:
            parts = [re.sub(rf"(?<![\w.]){old}\b", new, part) for part in parts]
    return parts[0], parts[1].rstrip("\n") + "\n"


def free_names(wrapper: metadata.MetadataWrapper) -> dict[str, str]:
    """Returns, by the names that are added, those under which the program has room for them."""
    taken = set()
    for scope in set(wrapper.resolve(metadata.ScopeProvider).values()):
        for assignment in scope.assignments if scope is not None else ():
            node = getattr(assignment, "node", None)
            if not isinstance(node, cst.Import | cst.ImportFrom):
                taken.add(assignment.name)
                continue
            taken.update(
                str(each.bound) for each in imports.read(node) if not (each.place or each.by_use)
            )
    found = {}
    for name in _names_of_program():
        found[name] = name
        while found[name] in taken:
            found[name] = f"tf2_{found[name]}"
    return found


def _names_of_program() -> list[str]:
    """Returns what is added at the top, but for modules under their own names."""
    names: list[str] = []
    for statement in ast.parse(_PROGRAM.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            names.append(statement.name)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            names.append(ast.unparse(target))
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            names += [alias.asname for alias in statement.names if alias.asname]
    return names
