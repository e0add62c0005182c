"""Reports flags that nothing reads after a rewrite; they stay in the program."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from estimator_bridge.migrate.rewrite_report import Line

_WHY = "Nothing reads --{} any more; it stays for command lines that have it"


def unread(old: str, new: str) -> list[Line]:
    before, after = ast.parse(old), ast.parse(new)
    kept = {flag for flag, _ in _flags(after)} - _read(after)
    read_before = _read(before)
    return [
        Line(statement.lineno, "by hand", f"--{flag}", "", _WHY.format(flag))
        for flag, statement in _flags(before)
        if flag in kept and flag in read_before
    ]


def _flags(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    statements = [each for each in ast.walk(tree) if isinstance(each, ast.Expr | ast.Assign)]
    for statement in sorted(statements, key=lambda each: each.lineno):
        call = statement.value
        called = getattr(call, "func", None)
        name = getattr(called, "attr", "") or getattr(called, "id", "")
        if name != "add_argument" and not name.startswith("DEFINE_"):
            continue
        assert isinstance(call, ast.Call)
        destinations = [each.value for each in call.keywords if each.arg == "dest"]
        names = [
            each.value
            for each in destinations or call.args
            if isinstance(each, ast.Constant) and isinstance(each.value, str)
        ]
        # If a flag has several names, argparse uses the first long one.
        for flag in sorted(names, key=lambda each: not each.startswith("--"))[:1]:
            yield flag.lstrip("-").replace("-", "_"), statement


def _read(tree: ast.Module) -> set[object]:
    defined = {each for _, one in _flags(tree) for each in ast.walk(one)}
    return {
        each.attr if isinstance(each, ast.Attribute) else each.value
        for each in ast.walk(tree)
        if isinstance(each, ast.Attribute | ast.Constant) and each not in defined
    }
