"""A result as one HTML page that needs nothing else: to read, to print, to sign."""

from __future__ import annotations

import datetime
import html
import itertools
import re
from collections.abc import Iterator, Sequence

from estimator_bridge.verify import charts, text
from estimator_bridge.verify.names import TABLE
from estimator_bridge.verify.recording import (
    CHECKPOINT,
    EVALUATION,
    EXPORT,
    PREDICTION,
    SERVED,
    TF2,
    VARIABLES,
)
from estimator_bridge.verify.result import Outcome, Point, Result, Series

_STEPS = 20

_STYLE = """
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


def page(result: Result, title: str = "the program") -> str:
    """Returns the page.

    Args:
        title: what was compared, such as the program and its arguments.
    """
    body = "".join(
        [
            f"<h1>Verification of {_escaped(title)}</h1>",
            f'<p class="quiet">One initial state, the same batches, two engines, step by step. '
            f"{datetime.date.today():%-d %B %Y}.</p>",
            _verdict(result),
            _sides(result),
            _causes(result),
            _tables(result),
            *_charts(result),
            _outcomes(result),
            _settings(result),
            _configuration(result),
            _method(result),
            '<div class="sign"><div>Name</div><div>Signature</div><div>Date</div></div>',
            _steps(result),
            _arrays(result),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Verification of {_escaped(title)}</title><style>{_STYLE}</style></head>"
        f"<body>{body}</body></html>\n"
    )


def _verdict(result: Result) -> str:
    word, _, sentence = text.verdict(result).partition(" " if result.equal else ": ")
    sentence = sentence[:1].upper() + sentence[1:]
    kind = "equal" if result.equal else "unequal"
    notes = "".join(f"<p>{_escaped(note)}</p>" for note in result.notes)
    said = f"<strong>{_escaped(word)}</strong>{_escaped(sentence)}"
    return f'<p class="verdict {kind}">{said}</p>{notes}'


def _sides(result: Result) -> str:
    a, b = result.settings
    rows = [
        ("program", *(s["program"] for s in (a, b))),
        ("engine", *(text.ENGINES[s["engine"]] for s in (a, b))),
        ("TensorFlow", a["tensorflow"], b["tensorflow"]),
        ("use_tpu", *("as True" if s["engine"] == TF2 else s["use_tpu"] for s in (a, b))),
        ("tables are in", a["where"], b["where"]),
        ("cores", a["cores"], b["cores"]),
        ("quirks", a["quirks"], b["quirks"]),
        ("variables looked at", *(_every(s["every"]) for s in (a, b))),
    ]
    cells = [[str(cell) for cell in row] for row in rows]
    return "<h2>The two sides</h2>" + _table(["", "side A", "side B"], cells)


def _every(steps: int) -> str:
    return "after every step" if steps == 1 else f"every {steps} steps"


def _causes(result: Result) -> str:
    if not result.causes:
        return ""
    entries = "".join(
        f"<dt>{_escaped(name)}</dt>" + "".join(f"<dd>{_escaped(cause.text)}</dd>" for cause in of)
        for name, of in itertools.groupby(result.causes, lambda cause: cause.name)
    )
    return (
        "<h2>Why they differ</h2><p>Recognised from the settings, and from the numbers of the "
        f"first step that differs.</p><dl>{entries}</dl>"
    )


def _charts(result: Result) -> Iterator[str]:
    if not result.series:
        return
    yield "<h2>How far apart, step by step</h2>"
    yield charts.legend(result)
    yield (
        f"<figure>{charts.over_steps(result)}<figcaption>The largest difference of each kind of "
        "array, as a share of what is allowed. Above the black line the sides differ; at the "
        "bottom they are equal to the bit.</figcaption></figure>"
    )
    yield (
        f"<figure>{charts.histogram(result)}<figcaption>How many of the {len(result.series)} "
        "arrays use which share of what is allowed, each at its worst step. To the right of the "
        "black line they differ.</figcaption></figure>"
    )


def _tables(result: Result) -> str:
    """Returns the verdict on each table and each of its slots."""
    of_tables = [series for series in result.series if series.group == VARIABLES and series.table]
    order = sorted(of_tables, key=lambda one: (str(one.table), one.role != TABLE, one.role))
    if not order:
        return ""
    header = ["table", "what", *text.NUMBERS, "first off", "verdict"]
    rows = []
    for series in order:
        _, *numbers, _ = text.row(series)
        first = "never" if series.first is None else str(series.first)
        what = "rows" if series.role == TABLE else series.role
        verdict = "equal" if series.first is None else "NOT EQUAL"
        rows.append([str(series.table), what, *numbers[1:], first, verdict])
    off = [_mark(series.first is not None) for series in order]
    return (
        "<h2>The tables</h2><p>Rows and slots of every table: the largest difference of an element "
        "in all steps, the same relative to the largest magnitude of the array, and in float32 "
        "numbers between the two (ULPs); and the largest share of what is allowed at a step, where "
        "1 is the limit. The appendix has the steps, and all other arrays.</p>"
        + _table(header, rows, (2, 3, 4, 5), off)
    )


def _steps(result: Result) -> str:
    tables = [series for series in result.series if series.role == TABLE and series.points]
    if not tables:
        return ""
    steps = [point.step for point in max((one.points for one in tables), key=len)]
    # A page is read: of many steps some, and those at which a table diverged.
    kept = {*steps[:: -(-len(steps) // _STEPS)], steps[-1]}
    kept |= {series.first.step for series in tables if series.first}
    by_step = [{point.step: point for point in series.points} for series in tables]
    rows = []
    for step in sorted(kept):
        points = [points.get(step) for points in by_step]
        rows.append([str(step), *("" if p is None else _numbers(p) for p in points)])
    return (
        "<h2>Appendix: the tables, step by step</h2><p>The largest difference, the same relative "
        "to the largest magnitude of the table, and the ULPs between the two elements.</p>"
        + _table(["step", *(str(series.table) for series in tables)], rows)
    )


def _numbers(point: Point) -> str:
    if not point.difference:
        return "0"
    said = f"{point.difference:.1e}, {point.relative:.1e}, {point.ulps}"
    return said if point.difference <= point.allowed else f"{said}: not allowed"


def _arrays(result: Result) -> str:
    header = ["array", "what", *text.NUMBERS, "first divergence"]
    rows = [_array(series) for series in result.series]
    off = [_mark(series.first is not None) for series in result.series]
    only = "".join(
        f"<p>On side {side} alone: {_escaped(', '.join(names))}.</p>"
        for side, names in zip("AB", result.only, strict=True)
        if names
    )
    return (
        "<h2>Appendix: every array</h2><p>What diverged first is in front, then what came closest "
        "to it. The numbers are those of the tables above.</p>"
        + _table(header, rows, (2, 3, 4, 5), off)
        + only
    )


def _array(series: Series) -> list[str]:
    row = text.row(series)
    row[-1] = "none" if series.first is None else str(series.first)
    if series.table:
        row[1] = f"{row[1]}, {series.table}"
    return row


def _outcomes(result: Result) -> str:
    """Returns what followed the training; of exported variables the worst."""
    rows, off = [], []
    for kind in dict.fromkeys(outcome.kind for outcome in result.outcomes):
        of_kind = [outcome for outcome in result.outcomes if outcome.kind == kind]
        whole = kind.startswith(EXPORT)
        wrong = sum(not outcome.equal for outcome in of_kind)
        for outcome in [max(of_kind, key=_used)] if whole else of_kind:
            name = outcome.name
            if whole:
                name = f"{len(of_kind)} variables, {wrong} of them not equal; most off: {name}"
            difference = outcome.note or f"{outcome.difference:.2e}"
            verdict = "equal" if outcome.equal else "NOT EQUAL"
            rows.append([kind, name, difference, f"{outcome.allowed:.1e}", verdict])
            off.append(_mark(not outcome.equal))
    header = ["of", "name", "difference", "allowed", "verdict"]
    body = _table(header, rows, (2, 3), off) if rows else ""
    kinds = {outcome.kind.partition("-")[0] for outcome in result.outcomes}
    missing = [said for kind, said in _FOLLOWS.items() if kind not in kinds]
    if missing and result.settings[1]["engine"] != CHECKPOINT:
        body += (
            f"<p>After its training the program {_listed(missing)}, so that is not compared.</p>"
        )
    if SERVED in kinds:
        body += (
            "<p>“served” are the answers of the exported models: each was loaded in a process with "
            "TensorFlow alone, and both were asked the same.</p>"
        )
    return f"<h2>Metrics, predictions, export, served answers</h2>{body}"


_FOLLOWS = {
    EVALUATION: "did not evaluate",
    PREDICTION: "did not predict",
    EXPORT: "exported no model",
}


def _used(outcome: Outcome) -> tuple[bool, float]:
    share = outcome.difference / outcome.allowed if outcome.allowed else outcome.difference
    return not outcome.equal, share


def _listed(parts: Sequence[str]) -> str:
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


def _settings(result: Result) -> str:
    both = [
        {(where, name): (value, why) for where, name, value, why in s["settings"]}
        for s in result.settings
    ]
    if not any(both):
        return ""
    rows, marks = [], []
    for where, name in dict.fromkeys([*both[0], *both[1]]):
        (a, why_a), (b, why_b) = (side.get((where, name), ("not set", "")) for side in both)
        if {a, b} == {"not set"}:
            continue
        notes = [f"{letter}: {why}" for letter, why in (("A", why_a), ("B", why_b)) if why]
        if why_a and why_a == why_b:
            notes = [why_a]
        rows.append([where, name, a, b if b != a else "the same", "; ".join(notes)])
        marks.append(" ".join([_mark(b != a), "ignored" if notes else ""]))
    return (
        "<h2>Settings</h2><p>What the embedding config sets. Shaded: settings that a side ignores, "
        "and why. Bold: settings that differ. What is not there is at its default.</p>"
        + _table(
            ["of", "setting", "on A", "on B", "ignored"],
            rows,
            (),
            marks,
        )
    )


def _configuration(result: Result) -> str:
    if result.config is None:
        said = (
            "<p>A side has none (use_tpu=False, or batches of any size), so there is nothing to "
            "compare.</p>"
        )
    elif not result.config:
        said = "<p>Both sides configure the device alike, field by field.</p>"
    else:
        said = _table(["field", "on A", "on B"], [list(difference) for difference in result.config])
    return f"<h2>Device configuration</h2>{said}"


def _method(result: Result) -> str:
    data = result.batches
    if result.settings[1]["engine"] == CHECKPOINT:
        fed = "Side B is a checkpoint: of it the last step is compared, and whatever it was given."
    elif data.replayed:
        fed = f"Side B was given the {data.number} batches that side A had read."
    elif data.first_different is None:
        fed = f"Each side read its own input; all {data.number} batches are the same."
    else:
        fed = f"Each side read its own input; it differs from batch {data.first_different} on."
    unlike = any(
        one.first is not None and one.first.step == result.steps[0] for one in result.series
    )
    began = (
        "Side B was to begin with side A's values, and did not."
        if unlike
        else "Both sides began with the same values."
    )
    others = text.reasons(result)
    rest = f"<p>Further: {_escaped('; '.join(others))}.</p>" if others else ""
    return (
        "<h2>How it was compared</h2>"
        f"<p>{_escaped(fed)} {began} Every variable, every slot, "
        "the activations, the gradients and the loss were written down as often as said above.</p>"
        f"<p>Allowed: {_escaped(text.tolerance_line(result))} In numbers: 2 · ((2n + 4) + s · (2 · "
        "(2n + 4) + 23)) · 2<sup>−24</sup> times the largest magnitude so far, where n = "
        f"{result.num_terms} and s counts the steps. The magnitude is that of an array; of "
        "gradients, and of variables of the model, that of all of them together. Integers must be "
        f"equal.</p>{rest}"
    )


def _table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric: Sequence[int] = (),
    marks: Sequence[str] = (),
) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        kinds = [
            "n" if i in numeric else "short" if cell in _SHORT else "" for i, cell in enumerate(row)
        ]
        return "".join(
            f'<{tag} class="{kind}">{_escaped(cell)}</{tag}>'
            for kind, cell in zip(kinds, row, strict=True)
        )

    body = "".join(
        f'<tr class="{mark}">{cells("td", row)}</tr>'
        for row, mark in itertools.zip_longest(rows, marks or [""] * len(rows))
    )
    return (
        f'<div class="scroll"><table><thead><tr>{cells("th", header)}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _mark(off: bool) -> str:
    return "off" if off else ""


_SHORT = ("equal", "NOT EQUAL", "the same")


def _escaped(value: str) -> str:
    """Returns text as HTML; what is between backquotes is code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(value))
