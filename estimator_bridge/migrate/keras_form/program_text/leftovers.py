"""Drops variables and flags that the new program no longer uses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from estimator_bridge.migrate.keras_form.program_text.source import names_in, nodes_in
from estimator_bridge.migrate.syntax.edits import lines_of

_EFFECTS = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)


def left_out(text: str, old: str) -> tuple[str, tuple[str, ...]]:
    """Returns the text without names that became unused, and the names of dropped absl flags.

    Names that were already unused in `old`, the program before the migration, are kept.
    """
    read_before = names_in(ast.parse(old))
    text = _without_variables(text, read_before)
    definitions = list(_flags(ast.parse(text)))
    flags = [each for each in definitions if _reads(each[1], old) and not _reads(each[1], text)]
    return _without(text, [each for each, _ in flags]), tuple(name for _, name in flags)


def note(flags: tuple[str, ...]) -> str:
    return (
        f"flags that nothing uses any more are left out: {', '.join(flags)}. A command line that "
        f"has them needs --undefok={','.join(flags)}"
    )


def _without_variables(text: str, read_before: set[str]) -> str:
    while (statement := next(_unread(ast.parse(text), read_before), None)) is not None:
        text = _without(text, [statement])
    return text


def _unread(tree: ast.Module, read_before: set[str]) -> Iterator[ast.Assign]:
    for function in nodes_in(tree, ast.FunctionDef):
        unread = read_before - names_in(function)
        for statement in function.body if len(function.body) > 1 else ():
            if not isinstance(statement, ast.Assign) or len(statement.targets) > 1:
                continue
            target = statement.targets[0]
            is_pure = not any(isinstance(each, _EFFECTS) for each in ast.walk(statement))
            if isinstance(target, ast.Name) and is_pure and target.id in unread:
                if not _is_shared(function, target.id):
                    yield statement


def _is_shared(function: ast.FunctionDef, name: str) -> bool:
    return any(
        name in each.names
        for each in ast.walk(function)
        if isinstance(each, (ast.Global, ast.Nonlocal))
    )


def _without(text: str, statements: Sequence[ast.stmt]) -> str:
    gone = {n for each in statements for n in range(each.lineno, (each.end_lineno or 0) + 1)}
    rows = enumerate(lines_of(text), 1)
    return "".join(row for number, row in rows if number not in gone)


def _flags(tree: ast.Module) -> Iterator[tuple[ast.Expr, str]]:
    for statement in tree.body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            function, names = ast.unparse(statement.value.func), statement.value.args[:1]
            if ".DEFINE_" in f".{function}" and names and isinstance(names[0], ast.Constant):
                yield statement, str(names[0].value)


def _reads(flag: str, text: str) -> bool:
    quoted = re.findall(rf"(['\"]){re.escape(flag)}\1", text)
    return bool(re.search(rf"FLAGS\.{re.escape(flag)}\b", text)) or len(quoted) > 1
