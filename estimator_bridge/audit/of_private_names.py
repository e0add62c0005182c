"""Finds the names of stock's private modules that a source uses and the bridge lacks."""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Iterator

from estimator_bridge import errors
from estimator_bridge.audit.report import Audit
from estimator_bridge.migrate.syntax.name_flow import NameFlow
from estimator_bridge.run import stock_names

_PACKAGES = {parent for path in stock_names.MODULES for parent in stock_names.parents(path)}
_REPLACED = (*stock_names.ROOTS, *set(stock_names.MODULES).difference(stock_names.KEPT))
_DOTTED = re.compile(r"\w+(\.\w+)+")


def audit_folder(folder: str) -> Audit:
    """Reports the private names of stock that a folder uses and the bridge lacks.

    Sources that are not Python 3 are reported too. Raises InvalidInput if there is no Python file.
    """
    remarks: list[str] = []
    paths = sorted(pathlib.Path(folder).rglob("*.py"))
    if not paths:
        raise errors.InvalidInput(f"audit: {folder} has no Python file.")
    for path in paths:
        where = str(path.relative_to(folder))
        try:
            remarks += remarks_of(ast.parse(path.read_bytes()), where)
        except (SyntaxError, ValueError) as error:
            remarks.append(f"{where} is not Python 3: {error}")
    if not remarks:
        remarks = [f"{len(paths)} source(s) use no private name of stock that the bridge lacks"]
    return Audit(folder, (), (), (), tuple(remarks))


def remarks_of(tree: ast.Module, file: str = "") -> Iterator[str]:
    flow = NameFlow(tree)
    found: dict[str, int] = {}
    for node in ast.walk(tree):
        for path in _paths(node, flow):
            found.setdefault(path, getattr(node, "lineno", 0))
    for path, line in sorted(found.items(), key=lambda item: item[1]):
        outcome = _outcome(path)
        if outcome is not None:
            yield f"{f'{file}, ' if file else ''}line {line}: {outcome}"


def _paths(node: ast.AST, flow: NameFlow) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield from (f"{node.module}.{alias.name}".removesuffix(".*") for alias in node.names)
    elif isinstance(node, ast.Attribute):
        yield from flow.full_names(node)
    elif isinstance(node, ast.Constant) and _DOTTED.fullmatch(str(node.value)):
        yield str(node.value)  # as importlib and mock take them


def _outcome(path: str) -> str | None:
    """Says what the bridge does about a name; None if it has the name, or it is not stock's."""
    if not any(f"{path}.".startswith(f"{root}.") for root in _REPLACED):
        return None
    if path in stock_names.MODULES or path in _PACKAGES:
        return None
    module, _, name = path.rpartition(".")
    while module and module not in stock_names.MODULES and module not in _PACKAGES:
        module, _, name = module.rpartition(".")
    full = f"{module}.{name}"
    if name in stock_names.MODULES.get(module, ()):
        return None
    if name in stock_names.lacking(module):
        return f"the bridge lacks stock's {full}: importing the name works, using it fails"
    what = "name" if module in stock_names.MODULES else "module"
    return f"the bridge has no {what} {full}: what imports or reads it fails"
