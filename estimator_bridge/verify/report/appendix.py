"""The appendices of the page: the tables step by step, and every array."""

from __future__ import annotations

from estimator_bridge.verify.findings import TABLE, Findings, Point
from estimator_bridge.verify.report import text
from estimator_bridge.verify.report.markup import TableRow, escaped, folded, mark, table

_MAX_STEPS = 20
"""About how many steps the appendix of the tables shows."""


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
    """Shows every array, and the names of those that only one side has."""
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
    return folded(
        "Appendix: every array",
        "<p>What diverged first is in front, then what came closest "
        "to it. The numbers are those of the tables above.</p>"
        + table(["array", "what", *text.NUMBERS, "first divergence"], rows, (2, 3, 4, 5))
        + only,
        "appendix",
    )
