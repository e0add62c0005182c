"""Text and tables as HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import NamedTuple

_SHORT = ("equal", "NOT EQUAL", "the same")


class Row(NamedTuple):
    """A row of a table.

    Attributes:
        cells: as text.
        marks: style classes: "off" for what differs, "ignored" for a setting without effect.
    """

    cells: Sequence[str]
    marks: str = ""


def escaped(text: str) -> str:
    """Returns text as HTML; what is between backquotes is code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))


def mark(differs: bool) -> str:
    """Returns the style class of a row."""
    return "off" if differs else ""


def table(header: Sequence[str], rows: Sequence[Row], numeric: Sequence[int] = ()) -> str:
    """Returns a table; `numeric` are the columns, from 0, that hold numbers."""
    body = "".join(
        f'<tr class="{row.marks}">{_cells("td", row.cells, numeric)}</tr>' for row in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{_cells("th", header, numeric)}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cells(tag: str, cells: Sequence[str], numeric: Sequence[int]) -> str:
    kinds = ("n" if i in numeric else "short" if c in _SHORT else "" for i, c in enumerate(cells))
    return "".join(
        f'<{tag} class="{kind}">{escaped(cell)}</{tag}>'
        for kind, cell in zip(kinds, cells, strict=True)
    )
