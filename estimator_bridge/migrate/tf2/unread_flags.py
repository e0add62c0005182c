"""Flags of a program that nothing reads once it is rewritten: each stays, with a comment."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from estimator_bridge.migrate.rewrite_report import Line
from estimator_bridge.migrate.syntax.edits import lines_of
from estimator_bridge.migrate.syntax.parsed_program import MARK

_WHY = "nothing reads {} any more; it stays for command lines that have it"


def remarked(old: str, new: str) -> tuple[str, list[Line]]:
    """Returns the new program with a comment above each flag that only the old one reads.

    Returns:
        The program, and the lines of the report.
    """
    before, after = ast.parse(old), ast.parse(new)
    lines_before = {flag: statement.lineno for flag, statement in _flags(before)}
    rows, lines = lines_of(new), []
    for flag, statement in reversed([*_flags(after)]):
        if flag not in lines_before or not _is_read(flag, before) or _is_read(flag, after):
            continue
        row = rows[statement.lineno - 1]
        indent = row[: len(row) - len(row.lstrip())]
        end = row[len(row.rstrip("\r\n")) :] or "\n"
        why = _WHY.format(f"--{flag}")
        rows.insert(statement.lineno - 1, f"{indent}{MARK}{why}.{end}")
        lines.append(Line(lines_before[flag], "by hand", f"--{flag}", "", f"N{why[1:]}"))
    return "".join(rows), lines


def _flags(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """Yields the flags of absl and of argparse, and the statements that define them, in order."""
    statements = [each for each in ast.walk(tree) if isinstance(each, ast.Expr | ast.Assign)]
    for statement in sorted(statements, key=lambda each: each.lineno):
        call = statement.value
        name = ast.unparse(call.func).rpartition(".")[2] if isinstance(call, ast.Call) else ""
        if name != "add_argument" and not name.startswith("DEFINE_"):
            continue
        assert isinstance(call, ast.Call)
        destinations = [each.value for each in call.keywords if each.arg == "dest"]
        names = [
            each.value
            for each in destinations or call.args
            if isinstance(each, ast.Constant) and isinstance(each.value, str)
        ]
        # Of several names argparse takes the first long one.
        for flag in sorted(names, key=lambda each: not each.startswith("--"))[:1]:
            yield flag.lstrip("-").replace("-", "_"), statement


def _is_read(flag: str, tree: ast.Module) -> bool:
    """Returns whether an attribute or a string besides the definition has the name of a flag."""
    defined = {id(each) for _, one in _flags(tree) for each in ast.walk(one)}
    return any(
        (isinstance(each, ast.Attribute) and each.attr == flag)
        or (isinstance(each, ast.Constant) and each.value == flag)
        for each in ast.walk(tree)
        if id(each) not in defined
    )
