"""The catalogue: a row for every legacy setting, in the order of reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from estimator_bridge.settings import row as on
from estimator_bridge.settings.input_settings import INPUTS
from estimator_bridge.settings.row import SettingRow
from estimator_bridge.settings.run_settings import RUNS
from estimator_bridge.settings.table_settings import TABLES
from estimator_bridge.settings.update_settings import UPDATES

ROWS: Mapping[str, SettingRow] = {**UPDATES, **TABLES, **INPUTS, **RUNS}
"""Maps names to rows. The field `rule` of a note is such a name."""

RULES: Mapping[str, SettingRow] = {
    name: row for name, row in ROWS.items() if row.severity != on.PLAIN
}
"""The rows that the audit reports."""


def readers(owner: str, setting: str) -> Iterator[tuple[str, on.When | None]]:
    fields = {f"{owner}.{setting}"}
    if owner.endswith("Parameters"):
        fields.add(f"*Parameters.{setting}")
    for name, row in ROWS.items():
        for field in fields & row.reads.keys():
            yield name, row.reads[field]


def finding_of(rule: str) -> str | None:
    return ROWS[rule].finding or (rule if rule in RULES else None)
