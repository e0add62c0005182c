"""Prints a table of the lines and branches that tests reached, by part of the packages.

python .ci/coverage_figures.py coverage.json
"""

from __future__ import annotations

import collections
import json
import pathlib
import sys


def part(path: str) -> str:
    """Returns the folder below a package that a file is in, or the package."""
    package, *inside = pathlib.PurePath(path).parts
    return f"{package}/{inside[0]}" if len(inside) > 1 else package


def row(name: str, counts: collections.Counter[str]) -> str:
    """Returns a line of the table."""
    cells = []
    for what, total in (("lines", counts["num_statements"]), ("branches", counts["num_branches"])):
        reached = counts[f"covered_{what}"]
        cells.append(f"{100 * reached / total:.1f} % of {total}" if total else "none")
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    """Prints the table."""
    files = json.loads(pathlib.Path(sys.argv[1]).read_text())["files"]
    parts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for path, measured in files.items():
        numbers = {
            key: value for key, value in measured["summary"].items() if isinstance(value, int)
        }
        for name in (part(path), "all"):
            parts[name].update(numbers)
    print("| | lines | branches |\n|---|---|---|")
    for name in sorted(parts, key=lambda name: (name == "all", name)):
        print(row(name, parts[name]))


if __name__ == "__main__":
    main()
