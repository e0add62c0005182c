"""Findings as one HTML page that needs nothing else: to read, to print, to sign."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator, Sequence

from estimator_bridge.verify.findings import TABLE, Findings, Outcome, Point
from estimator_bridge.verify.record import recording
from estimator_bridge.verify.report import charts, text
from estimator_bridge.verify.report.markup import STYLE, TableRow, escaped, mark, table

_MAX_STEPS = 20
"""About how many steps the appendix of the tables shows."""


def page(findings: Findings, title: str = "the program") -> str:
    """Returns the page.

    Args:
        title: what was compared, such as the program and its arguments.
    """
    body = "".join(
        [
            f"<h1>Verification of {escaped(title)}</h1>",
            f'<p class="quiet">One initial state, the same batches, two engines, step by step. '
            f"{datetime.date.today():%-d %B %Y}.</p>",
            _verdict(findings),
            _not_compared(findings),
            _sides(findings),
            _causes(findings),
            _tables(findings),
            _charts(findings),
            _outcomes(findings),
            _settings(findings),
            _configuration(findings),
            _method(findings),
            '<div class="sign"><div>Name</div><div>Signature</div><div>Date</div></div>',
            _steps(findings),
            _arrays(findings),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Verification of {escaped(title)}</title><style>{STYLE}</style></head>"
        f"<body>{body}</body></html>\n"
    )


def _verdict(findings: Findings) -> str:
    word, _, sentence = text.verdict(findings).partition(" " if findings.equal else ": ")
    sentence = sentence[:1].upper() + sentence[1:]
    kind = "equal" if findings.equal else "unequal"
    notes = "".join(f"<p>{escaped(note)}</p>" for note in findings.notes)
    verdict = f"<strong>{escaped(word)}</strong>{escaped(sentence)}"
    return f'<p class="verdict {kind}">{verdict}</p>{notes}'


def _not_compared(findings: Findings) -> str:
    entries = "".join(f"<li>{escaped(what)}</li>" for what in findings.not_compared)
    if not entries:
        return ""
    return f'<section class="box"><h2>Not compared, and why</h2><ul>{entries}</ul></section>'


def _sides(findings: Findings) -> str:
    columns = [
        {
            "program": side["program"],
            "engine": text.ENGINES[side["engine"]],
            "TensorFlow": side["tensorflow"],
            "use_tpu": "as True" if side["engine"] == recording.TF2 else str(side["use_tpu"]),
            "tables are in": side["where"],
            "cores": str(side["cores"]),
            "quirks": side["quirks"],
            "variables looked at": "after every step"
            if side["every"] == 1
            else f"every {side['every']} steps",
        }
        for side in findings.settings
    ]
    rows = [TableRow([name, *(column[name] for column in columns)]) for name in columns[0]]
    return "<h2>The two sides</h2>" + table(["", "side A", "side B"], rows)


def _causes(findings: Findings) -> str:
    if not findings.causes:
        return ""
    entries = "".join(
        f"<dt>{escaped(name)}</dt>" + "".join(f"<dd>{escaped(cause.text)}</dd>" for cause in of)
        for name, of in itertools.groupby(findings.causes, lambda cause: cause.name)
    )
    return (
        "<h2>Why they differ</h2><p>Recognised from the settings, and from the numbers of the "
        f"first step that differs.</p><dl>{entries}</dl>"
    )


def _charts(findings: Findings) -> str:
    if not findings.series:
        return ""
    return (
        f"<h2>How far apart, step by step</h2>{charts.legend(findings)}"
        f"<figure>{charts.over_steps(findings)}<figcaption>The largest difference of each kind of "
        "array, as a share of what is allowed. Above the black line the sides differ; at the "
        "bottom they are equal to the bit.</figcaption></figure>"
        f"<figure>{charts.histogram(findings)}<figcaption>How many of the {len(findings.series)} "
        "arrays use which share of what is allowed, each at its worst step. To the right of the "
        "black line they differ.</figcaption></figure>"
    )


def _tables(findings: Findings) -> str:
    of_tables = [one for one in findings.series if one.group == recording.VARIABLES and one.table]
    if not of_tables:
        return ""
    rows = []
    for series in sorted(of_tables, key=lambda one: (one.table, one.role != TABLE, one.role)):
        equal = series.first is None
        what = "rows" if series.role == TABLE else series.role
        first, verdict = ("never", "equal") if equal else (str(series.first), "NOT EQUAL")
        cells = [str(series.table), what, *text.numbers(series), first, verdict]
        rows.append(TableRow(cells, mark(not equal)))
    return (
        "<h2>The tables</h2><p>Rows and slots of every table: the largest difference of an element "
        "in all steps, the same relative to the largest magnitude of the array, and in float32 "
        "numbers between the two (ULPs); and the largest share of what is allowed at a step, where "
        "1 is the limit. The appendix has the steps, and all other arrays.</p>"
        + table(["table", "what", *text.NUMBERS, "first off", "verdict"], rows, (2, 3, 4, 5))
    )


def _steps(findings: Findings) -> str:
    tables = [series for series in findings.series if series.role == TABLE and series.points]
    if not tables:
        return ""
    steps = [point.step for point in max((one.points for one in tables), key=len)]
    # A page is read: of many steps some, and those at which a table diverged.
    kept = {*steps[:: -(-len(steps) // _MAX_STEPS)], steps[-1]}
    kept |= {series.first.step for series in tables if series.first}
    by_step = [{point.step: point for point in series.points} for series in tables]
    rows = []
    for step in sorted(kept):
        points = [points.get(step) for points in by_step]
        rows.append(TableRow([str(step), *("" if p is None else _numbers(p) for p in points)]))
    return (
        "<h2>Appendix: the tables, step by step</h2><p>The largest difference, the same relative "
        "to the largest magnitude of the table, and the ULPs between the two elements.</p>"
        + table(["step", *(str(series.table) for series in tables)], rows)
    )


def _numbers(point: Point) -> str:
    if not point.difference:
        return "0"
    numbers = f"{point.difference:.1e}, {point.relative:.1e}, {point.ulps}"
    return numbers if point.equal else f"{numbers}: not allowed"


def _arrays(findings: Findings) -> str:
    rows = []
    for one in findings.series:
        what = text.role(one) + (f", {one.table}" if one.table else "")
        first = "none" if one.first is None else str(one.first)
        cells = [one.name, what, *text.numbers(one), first]
        rows.append(TableRow(cells, mark(one.first is not None)))
    only = "".join(
        f"<p>On side {side} alone: {escaped(', '.join(names))}.</p>"
        for side, names in zip("AB", findings.only, strict=True)
        if names
    )
    return (
        "<h2>Appendix: every array</h2><p>What diverged first is in front, then what came closest "
        "to it. The numbers are those of the tables above.</p>"
        + table(["array", "what", *text.NUMBERS, "first divergence"], rows, (2, 3, 4, 5))
        + only
    )


def _outcomes(findings: Findings) -> str:
    header = ["of", "name", "difference", "allowed", "verdict"]
    rows = list(_rows_of_outcomes(findings.outcomes))
    body = table(header, rows, (2, 3)) if rows else ""
    kinds = {outcome.kind.partition("-")[0] for outcome in findings.outcomes}
    if recording.SERVED in kinds:
        body += (
            "<p>“served” are the answers of the exported models: each was loaded in a process with "
            "TensorFlow alone, and both got the same inputs.</p>"
        )
    return f"<h2>Metrics, predictions, export, served answers</h2>{body}"


def _rows_of_outcomes(outcomes: Sequence[Outcome]) -> Iterator[TableRow]:
    """Yields a row for each outcome, but for the variables of an export one for the worst."""
    for kind in dict.fromkeys(outcome.kind for outcome in outcomes):
        of_kind = [outcome for outcome in outcomes if outcome.kind == kind]
        if kind.startswith(recording.EXPORT):
            worst = max(of_kind, key=_used)
            wrong = sum(not outcome.equal for outcome in of_kind)
            count = f"{len(of_kind)} variables, {wrong} of them not equal; most off: "
            of_kind = [worst._replace(name=count + worst.name)]
        for outcome in of_kind:
            difference = outcome.note or f"{outcome.difference:.2e}"
            verdict = "equal" if outcome.equal else "NOT EQUAL"
            cells = [kind, outcome.name, difference, f"{outcome.allowed:.1e}", verdict]
            yield TableRow(cells, mark(not outcome.equal))


def _used(outcome: Outcome) -> tuple[bool, float]:
    share = outcome.difference / outcome.allowed if outcome.allowed else outcome.difference
    return not outcome.equal, share


def _settings(findings: Findings) -> str:
    both = [
        {(where, name): (value, why) for where, name, value, why in s["settings"]}
        for s in findings.settings
    ]
    if not any(both):
        return ""
    rows = []
    for where, name in dict.fromkeys([*both[0], *both[1]]):
        (a, why_a), (b, why_b) = (side.get((where, name), ("not set", "")) for side in both)
        if {a, b} == {"not set"}:
            continue
        notes = [f"{letter}: {why}" for letter, why in (("A", why_a), ("B", why_b)) if why]
        note = why_a if why_a == why_b else "; ".join(notes)
        cells = [where, name, a, b if b != a else "the same", note]
        rows.append(TableRow(cells, f"{mark(b != a)} {'ignored' if note else ''}"))
    return (
        "<h2>Settings</h2><p>What the embedding config sets. Shaded: settings that a side ignores, "
        "and why. Bold: settings that differ. What is not there is at its default.</p>"
        + table(["of", "setting", "on A", "on B", "ignored"], rows)
    )


def _configuration(findings: Findings) -> str:
    if findings.config is None:
        body = (
            "<p>A side has none (use_tpu=False, or batches of any size), so there is nothing to "
            "compare.</p>"
        )
    elif not findings.config:
        body = "<p>Both sides configure the device alike, field by field.</p>"
    else:
        body = table(["field", "on A", "on B"], [TableRow(field) for field in findings.config])
    return f"<h2>Device configuration</h2>{body}"


def _method(findings: Findings) -> str:
    data = findings.batches
    if findings.settings[1]["engine"] == recording.CHECKPOINT:
        fed = "Side B is a checkpoint: of it the last step is compared, and whatever it was given."
    elif data.replayed:
        fed = f"Side B was given the {data.number} batches that side A had read."
    elif data.first_different is None:
        fed = f"Each side read its own input; all {data.number} batches are the same."
    else:
        fed = f"Each side read its own input; it differs from batch {data.first_different} on."
    unlike = any(
        one.first is not None and one.first.step == findings.steps[0] for one in findings.series
    )
    began = (
        "Side B was to begin with side A's values, and did not."
        if unlike
        else "Both sides began with the same values."
    )
    others = "; ".join(text.reasons(findings))
    rest = f"<p>Further: {escaped(others)}.</p>" if others else ""
    return (
        "<h2>How it was compared</h2>"
        f"<p>{escaped(fed)} {began} Every variable, every slot, "
        "the activations, the gradients and the loss were written down as often as said above.</p>"
        f"<p>Allowed: {escaped(text.tolerance_line(findings))} In numbers: 2 · ((2n + 4) + s · "
        "(2 · (2n + 4) + 23)) · 2<sup>−24</sup> times the largest magnitude so far, where n = "
        f"{findings.num_terms} and s counts the steps. The magnitude is that of an array; of "
        "gradients, and of variables of the model, that of all of them together. Integers must be "
        f"equal.</p>{rest}"
    )
