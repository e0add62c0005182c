"""Writes the sections of the page that are tables, such as settings, outcomes and appendices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from estimator_bridge.recording.files import EXPORT, SERVED, VARIABLES
from estimator_bridge.verification import result
from estimator_bridge.verification.findings import TABLE, Findings, Outcome, Point, Series
from estimator_bridge.verification.report.markup import TableRow, escaped, folded, mark, table

_HEADER = ["of", "setting", "on A", "on B", "ignored"]


_MAX_SHOWN = 10
"""If there are more rows or slots, the page folds the others."""
_OUTCOME_HEADER = ["of", "name", "difference", "allowed", "because it is", "verdict"]
_MAX_OUTCOMES = 16
_MAX_STEPS = 20
"""The appendix of the tables shows about this many steps."""


def settings(findings: Findings) -> str:
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


def configuration(findings: Findings) -> str:
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


def table_section(findings: Findings) -> str:
    series = [one for one in findings.series if one.group == VARIABLES and one.table]
    if not series:
        return ""
    series.sort(key=lambda one: (one.first is None, one.table, one.role != TABLE, one.role))
    return (
        "<h2>The tables</h2><p>Rows and slots: the largest difference of an element in all steps, "
        "the same relative to the largest magnitude of the array, and in numbers of its type "
        "between the two (ULPs); and the largest share of what is allowed at a step, where 1 is "
        f"the limit.</p>{_table(series[:_MAX_SHOWN])}{_rest(series[_MAX_SHOWN:])}"
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
    return table(["table", "what", *result.NUMBERS, "first off", "verdict"], rows, (2, 3, 4, 5))


def outcome_section(findings: Findings) -> str:
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
            "<p>“served” are the answers of the exported models: each was loaded in a process with "
            "TensorFlow alone, and both got the same inputs.</p>"
        )
    return f"<h2>Metrics, predictions, export, served answers</h2>{body}"


def _rows(outcomes: Sequence[Outcome]) -> Iterator[TableRow]:
    for kind in dict.fromkeys(outcome.kind for outcome in outcomes):
        of_kind = [outcome for outcome in outcomes if outcome.kind == kind]
        if kind.startswith(EXPORT) and len(of_kind) > 1:
            worst = max(of_kind, key=_used)
            wrong = sum(not outcome.equal for outcome in of_kind)
            count = f"{len(of_kind)} variables, {wrong} of them not equal; most off: "
            of_kind = [worst._replace(name=count + worst.name)]
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


def steps(findings: Findings) -> str:
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
        "<p>The largest difference, the same relative "
        "to the largest magnitude of the table, and the ULPs between the two elements.</p>"
        + table(["step", *(str(series.table) for series in tables)], rows),
        "appendix",
    )


def _numbers(point: Point) -> str:
    if not point.difference:
        return "0"
    numbers = f"{point.difference:.1e}, {point.relative:.1e}, {point.ulps}"
    return numbers if point.equal else f"{numbers}: not allowed"


def arrays(findings: Findings) -> str:
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
        "<p>What diverged first is in front, then what came closest "
        "to it. The numbers are those of the tables above.</p>"
        + table(["array", "what", *result.NUMBERS, "first divergence"], rows, (2, 3, 4, 5))
        + only,
        "appendix",
    )
