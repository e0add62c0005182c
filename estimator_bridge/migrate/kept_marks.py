"""Adds comments with the reasons to a program that has to keep its estimators."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence

from estimator_bridge.migrate.blockers import Blocker, marked
from estimator_bridge.migrate.rewrite_report import TODO
from estimator_bridge.migrate.syntax.edits import lines_of

_MARK = re.compile(rf"^\s*{re.escape(TODO)} ", re.MULTILINE)
_ESTIMATORS = "from estimator_bridge import estimator"


def are_marked(texts: Sequence[str]) -> bool:
    return any(map(_MARK.search, texts)) and any(_ESTIMATORS in each for each in texts)


def with_marks(text: str, blockers: Iterable[Blocker]) -> str:
    tree = ast.parse(text)
    rows = lines_of(text)
    comments: dict[int, list[str]] = {}
    for each in blockers:
        at = _first_line(tree, each.line)
        row = rows[at - 1] if rows else ""
        indent = row[: len(row) - len(row.lstrip())]
        comments.setdefault(at, []).append(marked(each, indent, with_line=False))
    new = [
        "".join([*dict.fromkeys(comments.get(number, ())), row])
        for number, row in enumerate(rows, 1)
    ]
    return "".join(new)


def _first_line(tree: ast.Module, line: int) -> int:
    first = _above_the_program(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and line:
            decorators = getattr(node, "decorator_list", ())
            start = min([node.lineno, *(each.lineno for each in decorators)])
            if start <= line <= (node.end_lineno or start) and start > first:
                first = start
    return first


def _above_the_program(tree: ast.Module) -> int:
    body = tree.body
    is_text = body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    rest = body[1:] if is_text else body
    return rest[0].lineno if rest else 1
