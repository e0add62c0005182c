"""Text and tables as HTML, and the style sheet for them, for screens and for paper."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import NamedTuple

_SHORT = ("equal", "NOT EQUAL", "the same")


class TableRow(NamedTuple):
    """A row of a table; its style is "off" for what differs, "ignored" without an effect."""

    cells: Sequence[str]
    marks: str = ""


def escaped(text: str) -> str:
    """Returns text as HTML; what is between backquotes is code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))


def mark(differs: bool) -> str:
    """Returns the style class of a row."""
    return "off" if differs else ""


def table(header: Sequence[str], rows: Sequence[TableRow], numeric: Sequence[int] = ()) -> str:
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


STYLE = """
:root { --ink: #111; --quiet: #555; --rule: #ccc; --bad: #a01622; --good: #1c6b3c; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 2.5rem 1.5rem 4rem; background: #fff;
  color: var(--ink); font: 16px/1.5 Charter, "Bitstream Charter", Georgia, serif;
  overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .3rem; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; border-bottom: 1px solid var(--rule);
  padding-bottom: .2rem; break-after: avoid; }
p { margin: .4rem 0; max-width: 46rem; }
.quiet { color: var(--quiet); }
.verdict { border-left: 6px solid; padding: .7rem 1rem; margin: 1.4rem 0; max-width: none; }
.verdict strong { display: block; font-size: 1.5rem; line-height: 1.3; }
.equal { border-color: var(--good); } .equal strong { color: var(--good); }
.unequal { border-color: var(--bad); } .unequal strong { color: var(--bad); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font: 13px/1.4 "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .3rem .7rem .3rem 0;
  border-bottom: 1px solid #e5e5e5; }
th { border-bottom: 1.5px solid var(--ink); font-weight: 600; overflow-wrap: normal; }
td.n, th.n { text-align: right; white-space: nowrap; }
td:not(.n, .short) { min-width: 6rem; } td.short { white-space: nowrap; }
code { font: .9em Menlo, Consolas, monospace; }
tr { break-inside: avoid; }
tr.off td { color: var(--bad); font-weight: 600; }
tr.ignored td { background: #faf3dc; }
dt { font-weight: 600; margin-top: .7rem; } dd { margin: 0 0 .3rem 1.2rem; max-width: 46rem; }
figure { margin: 1rem 0; break-inside: avoid; } svg { max-width: 100%; height: auto; }
svg text { font: 12px "Helvetica Neue", Arial, sans-serif; fill: var(--ink); }
figcaption { font-size: .9rem; color: var(--quiet); max-width: 46rem; }
.legend { font: 13px/1.6 "Helvetica Neue", Arial, sans-serif; max-width: none; }
.key { margin-right: 1.2rem; white-space: nowrap; }
.sign { display: grid; grid-template-columns: 2fr 2fr 1fr; gap: 2rem; margin-top: 3.5rem;
  break-inside: avoid; }
.sign div { border-top: 1px solid var(--ink); padding-top: .3rem; font-size: .9rem; }
@media print { body { padding: 0; font-size: 11pt; } .scroll { overflow: visible; }
  table { font-size: 8.5pt; } }
"""
