"""Writes the tables in the docs that are generated from the catalogue of settings.

`python -m compat_tests.support.setting_tables` updates the tables.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence

from compat_tests import known_differences
from compat_tests.support.paths import ROOT
from estimator_bridge.settings import torch_rules
from estimator_bridge.settings.catalogue import ROWS, RULES
from estimator_bridge.settings.row import PLAIN, SEVERITIES, SettingRow
from estimator_bridge.settings.torch_rules import EFFECTS

DIFFERENCES = ROOT / "docs" / "differences.md"
GUIDE = ROOT / "docs" / "what_stock_did.md"
SPARSE_CORES = ROOT / "docs" / "sparsecore.md"
TORCH = ROOT / "docs" / "torch.md"
PAGES = (DIFFERENCES, GUIDE, SPARSE_CORES, TORCH)


def tables() -> dict[str, dict[str, str]]:
    """Maps each page to its tables. The key of a table is a line above it."""
    of_rules = {
        f"## {severity.capitalize()}: {text}": rules_table(severity)
        for severity, text in SEVERITIES.items()
    }
    of_rules[f"## {PLAIN.capitalize()}: {SEVERITIES[PLAIN]}"] = plain_table()
    return {
        DIFFERENCES.name: {
            "## Settings that stock ignores or treats unexpectedly": bridge_table(),
            "## Differences that remain": known_differences.table(),
        },
        GUIDE.name: of_rules,
        SPARSE_CORES.name: {
            f"## Settings that {heading}": sparse_core_table(outcome)
            for outcome, heading in (
                ("raises", "raise"),
                ("ignored", "are ignored"),
                ("other", "do something else"),
            )
        }
        | {"## Settings without a counterpart": sparse_core_table("gone")},
        TORCH.name: {
            "### torch.optim": torch_table("torch.optim"),
            "### FBGEMM and TorchRec": torch_table("FBGEMM"),
            "### optax": torch_table("optax"),
            "## Everything else": _table(
                ("setting", "in PyTorch", "what to do"),
                ((f"`{name}`", *effect) for name, effect in EFFECTS.items()),
            ),
        },
    }


def with_tables(page: str, text: str) -> str:
    for above, table in tables()[page].items():
        pattern = rf"(^{re.escape(above)}\n(?:(?!\||#).*\n)*)(?:\|.*\n)+"
        text, count = re.subn(pattern, lambda m: m[1] + table, text, flags=re.MULTILINE)  # noqa: B023
        assert count == 1, f"{page}: no table below {above!r}"
    return text


def rules_table(severity: str) -> str:
    rules = [(f"`{name}`", row) for name, row in RULES.items() if row.severity == severity]
    return _table(
        ("rule", "CPU", "TPU", "TensorFlow 2", "what to do"),
        ((name, row.cpu, row.tpu, row.tf2, row.way_out) for name, row in rules),
    )


def plain_table() -> str:
    plain = [row for row in ROWS.values() if row.severity == PLAIN and row.reads]
    return _table(
        ("setting", "CPU", "TPU", "TensorFlow 2"),
        ((_fields_of(row), row.cpu, row.tpu, row.tf2) for row in plain),
    )


def sparse_core_table(outcome: str) -> str:
    """Creates a Markdown table of the settings with a given outcome on TPUs with SparseCores."""
    rows = [(name, row) for name, row in ROWS.items() if row.sparse_core.outcome == outcome]
    return _table(
        ("setting", "first generation", "SparseCores", "what to do"),
        (
            (
                _fields_of(row) or f"`{name}`",
                row.tpu,
                row.sparse_core.effect,
                row.sparse_core.way_out,
            )
            for name, row in rows
        ),
    )


def torch_table(library: str) -> str:
    return _table(
        ("optimizer", library),
        (
            (optimizer, "<br>".join(map(torch_rules.described, by_library[library])))
            for optimizer, by_library in torch_rules.RULES.items()
        ),
    )


def _fields_of(row: SettingRow) -> str:
    pairs = (field.split(".") for field in row.reads)
    return "; ".join(
        f"{', '.join(f'`{setting}`' for _, setting in settings)} of {owner}"
        for owner, settings in itertools.groupby(pairs, lambda pair: pair[0])
    )


def bridge_table() -> str:
    """Creates a Markdown table of the settings that the bridge treats differently from stock."""
    cells = []
    for name, row in ROWS.items():
        by_quirks = "; ".join(f'"{quirks}": {effect}' for quirks, effect in row.quirks.items())
        if row.why:
            cells.append((f"`{name}`", row.cpu, row.tpu, row.bridge or by_quirks, row.why))
    return _table(("setting", "stock on a CPU", "stock on a TPU", "bridge", "why"), cells)


def _table(head: Sequence[str], cells: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(line)} |\n" for line in (head, *cells)]
    return "".join((lines[0], "|---" * len(head), "|\n", *lines[1:]))


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(with_tables(path.name, path.read_text(encoding="utf-8")), encoding="utf-8")
