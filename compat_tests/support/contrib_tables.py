"""Writes the names of `tf.contrib` into docs/tf1.md, from the list that `run` uses.

`python -m compat_tests.support.contrib_tables` updates the table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from compat_tests.support.paths import ROOT
from estimator_bridge.run.tf1 import contrib_names

PAGE = ROOT / "docs" / "tf1.md"
HEAD = "| `tf.contrib.` | names |\n|---|---|\n"


def table() -> str:
    """Creates a row for each public module: its names, and the modules of files in it."""
    rows = []
    for path, names in sorted(contrib_names.MODULES.items()):
        if path and ".python" not in path and "." not in path:
            rows.append(f"| `{path}` | {_names(path, names)} |\n")
    return HEAD + "".join(rows)


def with_table(text: str) -> str:
    pattern = re.escape(HEAD) + r"(\|.*\n)*"
    new, count = re.subn(pattern, lambda _: table(), text)
    assert count == 1, f"{PAGE.name}: no table of names"
    return new


def _names(path: str, names: Mapping[str, str]) -> str:
    target = contrib_names.WHOLE.get(path)
    if target is not None:
        return f"all of `{target.replace(':', '.').replace('tensorflow.', 'tf.')}`"
    below = [each for each in contrib_names.MODULES if each.startswith(f"{path}.")]
    deep = sorted(each.removeprefix(f"{path}.") for each in below if _is_file(each))
    listed = ", ".join(f"`{name}`" for name in sorted(names)) or "none"
    files = ", ".join(f"`{name}`" for name in deep)
    return f"{listed}; by full path {files}" if files else listed


def _is_file(path: str) -> bool:
    return bool(contrib_names.MODULES[path]) or path in contrib_names.WHOLE


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
