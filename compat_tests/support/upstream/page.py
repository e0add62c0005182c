"""Writes the tables of docs/upstream_tests.md from the rows.

`python -m compat_tests.support.upstream.page` updates them.
"""

from __future__ import annotations

import re

from compat_tests.support.paths import ROOT
from compat_tests.support.upstream.rows import DIFFERENCES, NOT_COUNTED

PAGE = ROOT / "docs" / "upstream_tests.md"
HEAD = "| file | tests | stock | bridge | why |\n|---|---|---|---|---|\n"
HEAD_NOT_COUNTED = "| file | tests that do not count | why |\n|---|---|---|\n"


def tables() -> dict[str, str]:
    """Maps the header of each table of the page to the table."""
    differences = (
        f"| `{row.file}` | `{row.tests}` | {row.stock} | {row.bridge} | {row.why} |\n"
        for row in DIFFERENCES
    )
    others = (f"| `{row.file}` | `{row.tests}` | it {row.why} |\n" for row in NOT_COUNTED)
    return {
        HEAD: HEAD + "".join(differences),
        HEAD_NOT_COUNTED: HEAD_NOT_COUNTED + "".join(others),
    }


def with_tables(text: str) -> str:
    for head, table in tables().items():
        pattern = re.escape(head) + r"(\|.*\n)*"
        text, count = re.subn(pattern, lambda _, new=table: new, text)
        assert count == 1, f"{PAGE.name}: there is no table {head!r}"
    return text


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
