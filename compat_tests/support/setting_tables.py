"""The tables of README and docs that are made of the catalogue of settings.

`python -m compat_tests.support.setting_tables` writes them anew.
"""

from __future__ import annotations

import re

from compat_tests import known_differences
from compat_tests.support.paths import ROOT
from estimator_bridge.settings import render
from estimator_bridge.settings.row import PLAIN, SEVERITIES

README = ROOT / "README.md"
GUIDE = ROOT / "docs" / "what_stock_did.md"


def tables() -> dict[str, dict[str, str]]:
    """Returns, for each page, its tables by the line that stands somewhere above each."""
    of_rules = {
        f"## {severity.capitalize()}: {text}": render.rules_table(severity)
        for severity, text in SEVERITIES.items()
    }
    of_rules[f"## {PLAIN.capitalize()}: {SEVERITIES[PLAIN]}"] = render.plain_table()
    return {
        README.name: {
            "## What stock ignored": render.bridge_table(),
            "Differences from stock that remain:": known_differences.table(),
        },
        GUIDE.name: of_rules,
    }


def with_tables(page: str, text: str) -> str:
    """Returns a page with the tables as they are now."""
    for above, table in tables()[page].items():
        pattern = rf"(^{re.escape(above)}\n(?:(?!\||#).*\n)*)(?:\|.*\n)+"
        text, count = re.subn(pattern, lambda m: m[1] + table, text, flags=re.MULTILINE)  # noqa: B023
        assert count == 1, f"{page}: no table below {above!r}"
    return text


if __name__ == "__main__":
    for path in (README, GUIDE):
        path.write_text(with_tables(path.name, path.read_text(encoding="utf-8")), encoding="utf-8")
