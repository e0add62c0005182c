"""Writes text and tables as HTML. STYLE is the style sheet for screens (light, dark) and paper."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tf2_engine import plain_text

_SHORT = 14
"""Table cells with at most this many characters are not broken into lines."""


class TableRow(NamedTuple):
    """A row of a table; marked "off" for a difference, or "ignored" for an ignored setting."""

    cells: Sequence[str]
    marks: str = ""


def escaped(text: str) -> str:
    """Escapes text for HTML; text between backquotes becomes code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(plain_text.plain(text)))


def mark(differs: bool) -> str:
    return "off" if differs else ""


def paragraph(text: str) -> str:
    return f"<p>{escaped(text)}</p>"


def bullets(items: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escaped(item)}</li>' for item in items)}</ul>"


def folded(summary: str, body: str, kind: str = "") -> str:
    opening = f'<details class="{kind}">' if kind else "<details>"
    return f"{opening}<summary>{escaped(summary)}</summary>{body}</details>"


def table(header: Sequence[str], rows: Sequence[TableRow], numeric: Sequence[int] = ()) -> str:
    body = "".join(
        f'<tr class="{row.marks}">{_cells("td", row.cells, numeric)}</tr>' for row in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{_cells("th", header, numeric)}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cells(tag: str, cells: Sequence[str], numeric: Sequence[int]) -> str:
    kinds = (
        "n" if i in numeric else "short" if len(c) <= _SHORT else "" for i, c in enumerate(cells)
    )
    return "".join(
        f'<{tag} class="{kind}">{escaped(cell)}</{tag}>'
        for kind, cell in zip(kinds, cells, strict=True)
    )


STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #111; --quiet: #555; --rule: #ccc;
  --faint: #ddd; --bad: #a01622; --good: #1c6b3c; --open: #8a5a00; --shade: #faf3dc;
  --equal: #0b5fa5; --activation: #0b5fa5; --loss: #444; --gradient: #9a5b00; --slot: #6b2f8a;
  --table: #a01622; --dense: #1c6b3c; }
@media screen and (prefers-color-scheme: dark) { :root { --paper: #16181b; --ink: #e8e6e1;
  --quiet: #a9a69f; --rule: #4a4d52; --faint: #33363b; --bad: #ff8a8f; --good: #7fd3a0;
  --open: #f0c060; --shade: #3a3320; --equal: #7db9ee; --activation: #7db9ee; --loss: #c4c4c4;
  --gradient: #e6a95a; --slot: #c99be0; --table: #ff8a8f; --dense: #7fd3a0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 2.5rem 1.5rem 4rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 Charter, "Bitstream Charter", Georgia, serif;
  overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .3rem; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; border-bottom: 1px solid var(--rule);
  padding-bottom: .2rem; break-after: avoid; }
p, ul { margin: .4rem 0; max-width: 46rem; }
.claim { font-size: 1.05rem; max-width: none; }
.verdict { border-left: 6px solid; padding: .7rem 1rem; margin: 1.4rem 0; max-width: none; }
.verdict strong { display: block; font-size: 1.5rem; line-height: 1.3; }
.equal { border-color: var(--good); } .equal strong { color: var(--good); }
.different { border-color: var(--bad); } .different strong { color: var(--bad); }
.unknown, .undecided { border-color: var(--open); }
.unknown strong, .undecided strong { color: var(--open); }
.box { border: 1.5px solid var(--rule); padding: .4rem 1rem .6rem; margin: 1.4rem 0; }
.box h2 { border: 0; margin: .2rem 0; font-size: 1.05rem; } .box ul { max-width: none; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font: 13px/1.4 "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .3rem .7rem .3rem 0;
  border-bottom: 1px solid var(--faint); }
th { border-bottom: 1.5px solid var(--ink); font-weight: 600; overflow-wrap: normal; }
td.n, th.n { text-align: right; white-space: nowrap; }
td:not(.n, .short) { min-width: 6rem; } td.short { white-space: nowrap; }
code { font: .9em Menlo, Consolas, monospace; }
tr { break-inside: avoid; }
tr.off td { color: var(--bad); font-weight: 600; }
tr.ignored td { background: var(--shade); }
dt { font-weight: 600; margin-top: .7rem; } dd { margin: 0 0 .3rem 1.2rem; max-width: 46rem; }
details { margin: .6rem 0; } summary { cursor: pointer; color: var(--quiet); }
.appendix > summary { color: var(--ink); font-size: 1.2rem; font-weight: 600; }
figure { margin: 1rem 0; break-inside: avoid; } svg { max-width: 100%; height: auto; }
svg text { font: 12px "Helvetica Neue", Arial, sans-serif; fill: var(--ink); }
figcaption { font-size: .9rem; color: var(--quiet); max-width: 46rem; }
.legend { font: 13px/1.6 "Helvetica Neue", Arial, sans-serif; max-width: none; }
.key { margin-right: 1.2rem; white-space: nowrap; }
.sign { display: grid; grid-template-columns: 2fr 2fr 1fr; gap: 2rem; margin-top: 3.5rem;
  break-inside: avoid; }
.sign div { border-top: 1px solid var(--ink); padding-top: .3rem; font-size: .9rem; }
.paper { display: none; }
@page { size: A4; margin: 12mm 14mm; }
@media print { :root { font-size: 11px; }
  body { padding: 0; max-width: none; font-size: 8.6pt; line-height: 1.3; }
  h1 { font-size: 14pt; } h2 { font-size: 10.5pt; margin: .7rem 0 .2rem; }
  p, ul, dd, figcaption { max-width: none; margin: .15rem 0; } ul { padding-left: 1.2rem; }
  .claim { font-size: 9.5pt; } .verdict { margin: .5rem 0; padding: .3rem .7rem; }
  .verdict strong { font-size: 13pt; } .box { margin: .5rem 0; padding: .2rem .7rem; }
  .scroll { overflow: visible; } table { font-size: 7.2pt; line-height: 1.25; }
  th, td { padding: .1rem .5rem .1rem 0; } td:not(.n, .short) { min-width: 0; }
  .charts { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; }
  figure { margin: .2rem 0; } .legend { font-size: 8pt; margin: 0; }
  details { display: none; } .paper { display: block; }
  .sign { margin-top: 1.8rem; } }
"""
