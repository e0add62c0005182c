"""Breaks overlong lines after a comma inside brackets."""

from __future__ import annotations

import io
import tokenize
from collections.abc import Collection
from typing import NamedTuple

from estimator_bridge.migrate.keras_form.program_text.source import WIDTH
from estimator_bridge.migrate.syntax.edits import lines_of

_MOST = 20
"""Maximum number of breaks per line."""


class _Place(NamedTuple):
    depth: int
    end: int
    indent: int


def broken(text: str, kept: Collection[str]) -> str:
    for _ in range(_MOST):
        rows = lines_of(text)
        long = {
            number for number, row in enumerate(rows, 1) if len(row) > WIDTH + 1 and row not in kept
        }
        places = _places(text, long) if long else {}
        if not places:
            break
        for number, place in places.items():
            row = rows[number - 1]
            rest = row[place.end :].lstrip()
            rows[number - 1] = f"{row[: place.end].rstrip()}\n{' ' * place.indent}{rest}"
        text = "".join(rows)
    return text


def _places(text: str, long: Collection[int]) -> dict[int, _Place]:
    """Finds where to break: after the last comma that fits, outside inner brackets.

    Without a comma, the break is before the last `for` or `if` of a comprehension.
    """
    best: dict[int, tuple[bool, _Place]] = {}
    brackets: list[tuple[int, int]] = []  # line of each open bracket, and the column after it
    rows = lines_of(text)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line, column = token.start
        if token.string in ("(", "[", "{"):
            brackets.append((line, column + 1))
        elif token.string in (")", "]", "}"):
            brackets.pop()
        elif token.string in (",", "for", "if") and line in long and brackets and column < WIDTH:
            is_comma = token.string == ","
            end, row = column + is_comma, rows[line - 1]
            place = _Place(
                len(brackets), end, _indent(row, end, brackets[-1][1], brackets[-1][0] == line)
            )
            before = best.get(line)
            is_better = before is None or (is_comma, -place.depth) >= (before[0], -before[1].depth)
            if row[end:].strip() and row[:end].strip() and is_better:
                best[line] = is_comma, place
    return {line: place for line, (_, place) in best.items()}


def _indent(row: str, end: int, behind: int, is_opened_here: bool) -> int:
    before = len(row) - len(row.lstrip())
    if not is_opened_here:
        return before
    return behind if behind + len(row[end:].strip()) <= WIDTH else before + 4
