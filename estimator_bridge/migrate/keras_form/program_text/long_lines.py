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


class _Comma(NamedTuple):
    """A comma in a line: its bracket depth, the column after it, and the next line's indent."""

    depth: int
    end: int
    indent: int


def broken(text: str, kept: Collection[str]) -> str:
    """Breaks overlong lines where brackets allow it, except the lines in `kept`."""
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
            rows[number - 1] = f"{row[: place.end]}\n{' ' * place.indent}{rest}"
        text = "".join(rows)
    return text


def _places(text: str, long: Collection[int]) -> dict[int, _Comma]:
    """Finds the comma at which to break each long line: the last outermost one that fits."""
    best: dict[int, _Comma] = {}
    brackets: list[tuple[int, int]] = []  # line of each open bracket, and the column after it
    rows = lines_of(text)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line, column = token.start
        if token.type != tokenize.OP:
            continue
        if token.string in "([{":
            brackets.append((line, column + 1))
        elif token.string in ")]}":
            brackets.pop()
        elif token.string == "," and line in long and brackets and column < WIDTH:
            opened, behind = brackets[-1]
            row = rows[line - 1]
            indent = behind if opened == line else len(row) - len(row.lstrip())
            place = _Comma(len(brackets), column + 1, indent)
            is_last = not row[column + 1 :].strip()
            if not is_last and (line not in best or place.depth <= best[line].depth):
                best[line] = place
    return best
