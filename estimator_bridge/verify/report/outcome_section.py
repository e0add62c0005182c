"""The section of the page on the outcomes of the training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from estimator_bridge.verify.findings import Findings, Outcome
from estimator_bridge.verify.record.recording import EXPORT, SERVED
from estimator_bridge.verify.report.markup import TableRow, folded, mark, table

_HEADER = ["of", "name", "difference", "allowed", "because it is", "verdict"]
_MAX_SHOWN = 16


def outcome_section(findings: Findings) -> str:
    rows = list(_rows(findings.outcomes))
    if not rows:
        return ""
    body = table(_HEADER, rows[:_MAX_SHOWN], (3,))
    if rest := rows[_MAX_SHOWN:]:
        unequal = sum(bool(row.marks) for row in rest)
        summary = f"{len(rest)} more, {unequal} of them not equal"
        body += f"<p>And {summary}.</p>" + folded(summary, table(_HEADER, rest, (3,)))
    if any(outcome.kind.startswith(SERVED) for outcome in findings.outcomes):
        body += (
            "<p>“served” are the answers of the exported models: each was loaded in a process with "
            "TensorFlow alone, and both got the same inputs.</p>"
        )
    return f"<h2>Metrics, predictions, export, served answers</h2>{body}"


def _rows(outcomes: Sequence[Outcome]) -> Iterator[TableRow]:
    """Yields a row for each outcome; the variables of an export share one row."""
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
