"""Shows findings as one self-contained HTML page, which can be read, printed and signed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from estimator_bridge.recording.files import (
    CHECKPOINT,
    EXPORT,
    KERAS,
    PORT,
    SERVED,
    TF2,
    VARIABLES,
    SideDescription,
)
from estimator_bridge.verification import result
from estimator_bridge.verification.findings import TABLE, Outcome, Point, Series
from estimator_bridge.verification.report import charts
from estimator_bridge.verification.report.markup import (
    STYLE,
    TableRow,
    bullets,
    escaped,
    folded,
    mark,
    paragraph,
    table,
)
from estimator_bridge.verification.result import Result, other_lines, table_lines

_MAX_OF_CAUSE = 3
_MAX_OF_POWER = 4
_HEADER = ["belongs to", "setting", "on A", "on B", "ignored because"]
_MAX_SHOWN = 10
_OUTCOME_HEADER = ["outcome", "name", "difference", "allowed", "reason", "verdict"]
_MAX_OUTCOMES = 16
_MAX_STEPS = 20


def page(findings: Result, title: str = "the program") -> str:
    body = "".join(
        [
            f"<h1>Verification of {escaped(title)}</h1>",
            f'<p class="claim">{escaped(claim(findings))}</p>',
            _verdict(findings),
            _not_compared(findings),
            _causes(findings),
            _sides(findings),
            _tables(findings),
            _outcomes(findings),
            _charts(findings),
            _settings(findings),
            _configuration(findings),
            _method(findings),
            '<div class="sign"><div>Name</div><div>Signature</div><div>Date</div></div>',
            '<p class="paper">The appendices, with every array, step and setting, are in the '
            "HTML file.</p>",
            _steps(findings),
            _every_array(findings),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Verification of {escaped(title)}</title><style>{STYLE}</style></head>"
        f"<body>{body}</body></html>\n"
    )


def claim(findings: Result) -> str:
    a, b = (_named(letter, side) for letter, side in zip("AB", findings.settings, strict=True))
    steps = max(len(findings.steps) - 1, 0)
    data = "the same batches" if findings.batches.replayed else "each side's own input"
    kinds = dict.fromkeys(outcome.kind.partition("-")[0] for outcome in findings.outcomes)
    after = f", and in what follows training: {', '.join(kinds)}" * bool(kinds)
    if findings.settings[1]["engine"] == CHECKPOINT:
        return f"This page says whether {b} holds what {a} has computed in {steps} steps."
    return (
        f"This page says whether {b} computes the same numbers as {a} in {steps} steps of training "
        f"on {data}"
        f"{after}."
    )


def _named(letter: str, side: SideDescription) -> str:
    engine = result.ENGINES[side["engine"]]
    is_elsewhere = side["engine"] in (CHECKPOINT, PORT)
    version = "" if is_elsewhere else f" on TensorFlow {side['tensorflow']}"
    return f"side {letter}, {engine}{version} ({side['side']}),"


def _verdict(findings: Result) -> str:
    sentence = result.verdict(findings)
    words = ("NOT EQUAL", "NO VERDICT", "UNDECIDED", "EQUAL")
    word = next((each for each in words if sentence.startswith(each)), "")
    rest = sentence.removeprefix(word).lstrip(": ")
    kind = findings.status.name.lower()
    notes = "".join(map(paragraph, findings.notes))
    body = f"<strong>{escaped(word)}</strong>{escaped(rest[:1].upper() + rest[1:])}"
    undecided = bullets(findings.undecided[1:]) if len(findings.undecided) > 1 else ""
    return f'<div class="verdict {kind}">{body}{undecided}</div>{notes}'


def _not_compared(findings: Result) -> str:
    if not findings.not_compared:
        return ""
    body = bullets(findings.not_compared)
    return f'<section class="box"><h2>Not compared, and why</h2>{body}</section>'


def _sides(findings: Result) -> str:
    columns = [
        {
            "program": side["program"],
            "engine": result.ENGINES[side["engine"]],
            "TensorFlow": side["tensorflow"],
            "use_tpu": "as True" if side["engine"] in (TF2, KERAS) else str(side["use_tpu"]),
            "tables are in": side["where"],
            "cores": str(side["cores"]),
            "quirks": side["quirks"],
            "variables compared": "after every step"
            if side["every"] == 1
            else f"every {side['every']} steps",
        }
        for side in findings.settings
    ]
    rows = []
    for name in columns[0]:
        a, b = (column[name] for column in columns)
        rows.append(TableRow([name, a, b if b != a else "the same"]))
    about = [TableRow([name, value]) for name, value in findings.about.items()]
    circumstances = table(["how the comparison was run", ""], about) if about else ""
    return "<h2>The two sides</h2>" + table(["", "side A", "side B"], rows) + circumstances


def _causes(findings: Result) -> str:
    if not findings.causes:
        return ""
    entries = "".join(
        f"<dt>{escaped(name)}</dt>{_cause([cause.text for cause in of])}"
        for name, of in itertools.groupby(findings.causes, lambda cause: cause.name)
    )
    return (
        "<h2>Why they differ</h2><p>The causes were recognised from the settings, and from the "
        "numbers of the first step that differs. A cause is an observation, not a proof.</p>"
        f"<dl>{entries}</dl>"
    )


def _cause(texts: Sequence[str]) -> str:
    shown = "".join(f"<dd>{escaped(one)}</dd>" for one in texts[:_MAX_OF_CAUSE])
    rest = texts[_MAX_OF_CAUSE:]
    if not rest:
        return shown
    more = folded(f"Show these {len(rest)}", bullets(rest))
    return f"{shown}<dd>And {len(rest)} more of this kind.{more}</dd>"


def _charts(findings: Result) -> str:
    if not findings.series:
        return ""
    explained = "".join(map(paragraph, charts.explained(findings)))
    return (
        f"<h2>How far apart, step by step</h2>{charts.legend(findings)}<div class='charts'>"
        f"<figure>{charts.over_steps(findings)}<figcaption>The largest difference of each kind of "
        "array, as a share of the allowed difference. Above the thick line the sides differ; at "
        "the bottom they are equal to the bit.</figcaption></figure>"
        f"<figure>{charts.histogram(findings)}<figcaption>How many of the {len(findings.series)} "
        "arrays use which share of the allowed difference, each at its worst step. To the right "
        f"of the thick line the sides differ.</figcaption></figure></div>{explained}"
    )


def _method(findings: Result) -> str:
    others = "; ".join(result.reasons(findings))
    rest = paragraph(f"Other differences: {others}.") if others else ""
    return (
        f"<h2>How it was compared</h2>{paragraph(f'{_fed(findings)} {_began(findings)}')}"
        f"{paragraph(f'Allowed: {result.tolerance_paragraph(findings)}')}"
        f"{_power(findings)}{rest}"
    )


def _power(findings: Result) -> str:
    tables = list(table_lines(findings))
    shown, more = tables[:_MAX_OF_POWER], tables[_MAX_OF_POWER:]
    others = "In the other tables, smaller errors would have been seen." if more else ""
    lines = [*shown, *([others] if others else []), *other_lines(findings)]
    folded_lines = folded(f"Show these {len(more)}", bullets(more)) if more else ""
    return paragraph(f"What would have been seen: {' '.join(lines)}") + folded_lines


def _fed(findings: Result) -> str:
    read = findings.batches
    if findings.settings[1]["engine"] == CHECKPOINT:
        return (
            "Side B is a checkpoint: only its last step is compared, and nothing is known about "
            "its input."
        )
    if read.replayed:
        return f"Side B was given the {read.number} batches that side A had read."
    if read.equal:
        return f"Each side read its own input; all {read.number} batches are the same."
    return f"Each side read its own input, and {read}."


def _began(findings: Result) -> str:
    start = findings.steps[0] if findings.steps else None
    points = [
        one.points[0] for one in findings.series if one.points and one.points[0].step == start
    ]
    if not points:
        return ""
    if not any(point.difference for point in points):
        return "Both sides began with the same variables, bit for bit."
    if all(point.equal for point in points):
        return "Both sides began with the same variables, except for rounding."
    return "The sides did not begin with the same variables."


def _settings(findings: Result) -> str:
    both = [
        {(where, name): (value, why) for where, name, value, why in side["settings"]}
        for side in findings.settings
    ]
    if not any(both):
        return ""
    shown: list[TableRow] = []
    equal: list[TableRow] = []
    for where, name in dict.fromkeys([*both[0], *both[1]]):
        (a, why_a), (b, why_b) = (side.get((where, name), ("not set", "")) for side in both)
        if {a, b} == {"not set"}:
            continue
        notes = [f"{letter}: {why}" for letter, why in (("A", why_a), ("B", why_b)) if why]
        note = why_a if why_a == why_b else "; ".join(notes)
        cells = [where, name, a, b if b != a else "the same", note]
        row = TableRow(cells, f"{mark(b != a)} {'ignored' if note else ''}")
        (shown if note or a != b else equal).append(row)
    seen = (
        "<p>Shaded: settings that a side ignores, and why. Bold: settings that differ.</p>"
        + table(_HEADER, shown)
        if shown
        else "<p>No setting differs, and none is ignored.</p>"
    )
    rest = folded(f"{len(equal)} settings are the same on both sides", table(_HEADER, equal))
    return f"<h2>Settings</h2>{seen}{rest if equal else ''}"


def _configuration(findings: Result) -> str:
    if findings.config is None:
        body = (
            "<p>A side has no device configuration (because of use_tpu=False, or because its batch "
            "size is not fixed), so there is nothing to compare.</p>"
        )
    elif not findings.config:
        body = "<p>Both sides have the same device configuration, field by field.</p>"
    else:
        body = table(["field", "on A", "on B"], [TableRow(field) for field in findings.config])
    return f"<h2>Device configuration</h2>{body}"


def _tables(findings: Result) -> str:
    series = [one for one in findings.series if one.group == VARIABLES and one.table]
    if not series:
        return ""
    series.sort(key=lambda one: (one.first is None, one.table, one.role != TABLE, one.role))
    return (
        "<h2>The tables</h2><p>For rows and slots: the largest difference of an element in all "
        "steps; this difference relative to the largest magnitude of the array, and in units in "
        "the last place (ULPs); and the largest share of the allowed difference, where 1 is the "
        "limit."
        f"</p>{_table(series[:_MAX_SHOWN])}{_rest(series[_MAX_SHOWN:])}"
    )


def _rest(series: list[Series]) -> str:
    if not series:
        return ""
    unequal = sum(one.first is not None for one in series)
    verdict = f"{unequal} of them not equal" if unequal else "all equal"
    tables = len({one.table for one in series})
    return (
        f"<p>And {len(series)} more rows and slots, in {tables} tables: {verdict}.</p>"
        f"{folded(f'Show these {len(series)}', _table(series))}"
    )


def _table(series: list[Series]) -> str:
    rows = []
    for one in series:
        equal = one.first is None
        what = "rows" if one.role == TABLE else one.role
        verdict = "equal" if equal else "NOT EQUAL"
        first = "never" if one.first is None else result.place(one.first)
        cells = [str(one.table), what, *result.numbers(one), first, verdict]
        rows.append(TableRow(cells, mark(not equal)))
    header = ["table", "what", *result.NUMBERS, "first divergence", "verdict"]
    return table(header, rows, (2, 3, 4, 5))


def _outcomes(findings: Result) -> str:
    rows = list(_rows(findings.outcomes))
    if not rows:
        return ""
    body = table(_OUTCOME_HEADER, rows[:_MAX_OUTCOMES], (3,))
    if rest := rows[_MAX_OUTCOMES:]:
        unequal = sum(bool(row.marks) for row in rest)
        summary = f"{len(rest)} more, {unequal} of them not equal"
        body += f"<p>And {summary}.</p>" + folded(summary, table(_OUTCOME_HEADER, rest, (3,)))
    if any(outcome.kind.startswith(SERVED) for outcome in findings.outcomes):
        body += (
            "<p>“served” stands for the answers of the exported models. Each model was loaded in a "
            "process with TensorFlow alone, and both models got the same inputs.</p>"
        )
    return f"<h2>Metrics, predictions, export, served answers</h2>{body}"


def _rows(outcomes: Sequence[Outcome]) -> Iterator[TableRow]:
    for kind in dict.fromkeys(outcome.kind for outcome in outcomes):
        of_kind = [outcome for outcome in outcomes if outcome.kind == kind]
        if kind.startswith(EXPORT) and len(of_kind) > 1:
            worst = max(of_kind, key=_used)
            wrong = sum(not outcome.equal for outcome in of_kind)
            count = f"{len(of_kind)} variables, {wrong} of them not equal"
            of_kind = [worst._replace(name=f"{count}; the largest difference is in {worst.name}")]
        for outcome in sorted(of_kind, key=lambda one: one.equal):
            yield _row(outcome)


def _row(outcome: Outcome) -> TableRow:
    difference = outcome.note or (f"{outcome.difference:.2e}" if outcome.difference else "0")
    if outcome.where:
        difference += f": {outcome.where}"
    verdict = "equal" if outcome.equal else "NOT EQUAL"
    allowed = f"{outcome.allowed:.1e}" if outcome.allowed else "0"
    cells = [outcome.kind, outcome.name, difference, allowed, outcome.why, verdict]
    return TableRow(cells, mark(not outcome.equal))


def _used(outcome: Outcome) -> tuple[bool, float]:
    share = outcome.difference / outcome.allowed if outcome.allowed else outcome.difference
    return not outcome.equal, share


def _steps(findings: Result) -> str:
    tables = [series for series in findings.series if series.role == TABLE and series.points]
    if not tables:
        return ""
    numbers = [point.step for point in max((one.points for one in tables), key=len)]
    # The selection includes the steps at which a table diverged.
    kept = {*numbers[:: -(-len(numbers) // _MAX_STEPS)], numbers[-1]}
    kept |= {series.first.step for series in tables if series.first}
    by_step = [{point.step: point for point in series.points} for series in tables]
    rows = []
    for step in sorted(kept):
        points = [points.get(step) for points in by_step]
        rows.append(TableRow([str(step), *("" if p is None else _numbers(p) for p in points)]))
    return folded(
        "Appendix: the tables, step by step",
        "<p>Each cell has the largest difference; this difference relative "
        "to the largest magnitude of the table, and in units in the last place (ULPs).</p>"
        + table(["step", *(str(series.table) for series in tables)], rows),
        "appendix",
    )


def _numbers(point: Point) -> str:
    if not point.difference:
        return "0"
    numbers = f"{point.difference:.1e}, {point.relative:.1e}, {point.ulps}"
    return numbers if point.equal else f"{numbers}: not allowed"


def _every_array(findings: Result) -> str:
    rows = []
    for one in findings.series:
        what = result.role(one) + (f", {one.table}" if one.table else "")
        first = "none" if one.first is None else str(one.first)
        cells = [one.name, what, *result.numbers(one), first]
        rows.append(TableRow(cells, mark(one.first is not None)))
    only = "".join(
        f"<p>On side {side} alone: {escaped(', '.join(names))}.</p>"
        for side, names in zip("AB", findings.only, strict=True)
        if names
    )
    return folded(
        "Appendix: every array",
        "<p>The array that diverged first comes first, then the arrays that came closest to their "
        "tolerance. The columns are explained above.</p>"
        + table(["array", "what", *result.NUMBERS, "first divergence"], rows, (2, 3, 4, 5))
        + only,
        "appendix",
    )
