"""The sections of the page on settings, and on the configuration of the device."""

from __future__ import annotations

from estimator_bridge.verify.findings import Findings
from estimator_bridge.verify.report.markup import TableRow, folded, mark, table

_HEADER = ["of", "setting", "on A", "on B", "ignored"]


def settings(findings: Findings) -> str:
    """Shows settings that differ or are ignored; the equal ones are folded."""
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
