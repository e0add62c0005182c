"""The catalogue of settings has a row for each legacy field with all that a report needs."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import pytest

from compat_tests.cases.legacy import Table
from compat_tests.support import legacy_specs, setting_tables, translating
from compat_tests.support.legacy_specs import OURS
from estimator_bridge import audit
from estimator_bridge.legacy import run_config
from estimator_bridge.migrate.legacy_specs.spec_to_tf2 import EFFECTS
from estimator_bridge.settings.catalogue import ROWS, RULES, readers
from estimator_bridge.settings.row import LOOKUP, SEVERITIES, ChangeText, SettingRow

TUPLES = ("EmbeddingConfigSpec", "TableConfig", "FeatureConfig", "TPUConfig")
OPTIMIZERS = sorted(
    name for name in vars(OURS) if name.endswith("Parameters") and name != "OptimizationParameters"
)
ARGUMENTS = {
    "embedding_column.embedding_lookup_device",
    "shared_embedding_columns.max_sequence_lengths",
    "TPUEstimator.export_to_tpu",
}
"""The arguments that rows read beside the fields of classes."""


def fields_of(name: str) -> tuple[str, ...]:
    """Returns the settings of one of our legacy classes."""
    if name in OPTIMIZERS:
        return tuple(field.name for field in dataclasses.fields(getattr(OURS, name)))
    kind = run_config.TPUConfig if name == "TPUConfig" else getattr(OURS, name)
    return tuple(kind._fields)


@pytest.mark.parametrize("name", [*TUPLES, *OPTIMIZERS])
def test_every_field_has_a_row(name: str) -> None:
    """The catalogue reads every field. Stock has no others: see test_spec and test_run_config."""
    without = [field for field in fields_of(name) if not any(readers(name, field))]

    assert without == [], f"add rows to settings/*_settings.py that read these fields of {name}"


def test_no_row_reads_what_is_not_there() -> None:
    """Every field that a row reads is one of a legacy class, or an argument of another callable."""
    known = {f"{name}.{field}" for name in (*TUPLES, *OPTIMIZERS) for field in fields_of(name)}
    known |= {f"*Parameters.{field}" for name in OPTIMIZERS for field in fields_of(name)}
    read = {field for row in ROWS.values() for field in row.reads}

    assert read - known == ARGUMENTS


@pytest.mark.parametrize("name", ROWS)
def test_every_row_says_what_each_side_does(name: str) -> None:
    """A row has a severity and a text for each engine; one that is reported also has a way out."""
    row = ROWS[name]
    texts = [row.cpu, row.tpu, row.tf2, *([row.way_out] if name in RULES else [])]

    assert row.severity in SEVERITIES
    assert all(text.rstrip(".") == text != "" for text in texts)
    assert not row.finding or row.finding in RULES
    assert not row.why or row.bridge or row.quirks
    assert {change.effect for change in (row.change, row.change_of_stock) if change} <= set(EFFECTS)


def test_a_row_is_all_that_reports_need(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Audit of a spec and of a source, warnings, `to_tf2` and the guide follow from a new row."""

    def unlucky(value: Any) -> bool:
        return bool(value == 13)

    row = SettingRow(
        "surprising",
        cpu="on a CPU",
        tpu="on a TPU",
        tf2="in TensorFlow 2",
        way_out="do not",
        reads={"TableConfig.dimension": unlucky},
        warnings={LOOKUP: "{where}{value} brings bad luck."},
        change=ChangeText("numbers", "12", "It brings bad luck."),
    )
    rows: Any = ROWS
    rules: Any = RULES
    monkeypatch.setitem(rows, "unlucky", row)
    monkeypatch.setitem(rules, "unlucky", row)
    settings = {"tables": {"t": Table(dimension=13)}}
    spec = legacy_specs.build(translating.case(**settings))
    path = tmp_path / "job.py"
    path.write_text("table = TableConfig(9, dimension=13)")

    expected = audit.Finding("unlucky", "table 't'", "dimension=13")
    assert expected in audit.audit_spec(spec).findings
    assert [f.value for f in audit.audit_script(str(path)).findings] == ["dimension=13"]
    assert translating.warned(**settings) == ["Table 't': 13 brings bad luck."]
    assert "[numbers] table 't': dimension=13 -> 12. It brings bad luck." in str(
        spec.to_tf2().report
    )
    assert "| `unlucky` | on a CPU | on a TPU |" in setting_tables.rules_table("surprising")
