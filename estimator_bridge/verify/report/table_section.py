"""The section of the page on tables and their slots."""

from __future__ import annotations

from estimator_bridge.verify.findings import TABLE, Findings, Series
from estimator_bridge.verify.record.recording import VARIABLES
from estimator_bridge.verify.report import text
from estimator_bridge.verify.report.markup import TableRow, folded, mark, table

_MAX_SHOWN = 10
"""How many rows and slots are shown unfolded."""


def table_section(findings: Findings) -> str:
    """Shows the rows and slots of every table: first those that differ."""
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
        first = "never" if one.first is None else text.place(one.first)
        cells = [str(one.table), what, *text.numbers(one), first, verdict]
        rows.append(TableRow(cells, mark(not equal)))
    return table(["table", "what", *text.NUMBERS, "first off", "verdict"], rows, (2, 3, 4, 5))
