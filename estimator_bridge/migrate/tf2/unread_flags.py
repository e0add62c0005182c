"""Reports flags that nothing reads after a rewrite; they stay in the program."""

from __future__ import annotations

import ast
from collections import Counter
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
        destinations = [each.value for each in call.keywords if each.arg in ("dest", "name")]
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
    words = Counter(_word(each) for each in ast.walk(tree) if each not in defined)
    for key, value in _entries_of_params(tree):
        inside = Counter(map(_word, [key, *ast.walk(value)]))
        if words[_word(key)] == inside[_word(key)]:  # no other code names this entry
            words -= inside
    return {*words}


def _word(node: ast.AST) -> object:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.value if isinstance(node, ast.Constant) else None


def _entries_of_params(tree: ast.Module) -> Iterator[tuple[ast.expr, ast.expr]]:
    given = [
        each.value
        for each in ast.walk(tree)
        if isinstance(each, ast.keyword) and each.arg == "params"
    ]
    names = {each.id for each in given if isinstance(each, ast.Name)}
    for each in ast.walk(tree):
        if (
            isinstance(each, ast.Assign)
            and {getattr(one, "id", "") for one in each.targets} & names
        ):
            given.append(each.value)
    for each in given:
        if isinstance(each, ast.Dict):
            yield from (
                (key, value) for key, value in zip(each.keys, each.values, strict=True) if key
            )
