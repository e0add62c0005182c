"""Migrates other people's programs to each form, and prints the statuses and numbers of marks.

python -m compat_tests.support.migrate_programs FOLDER...

Each FOLDER has a folder for each program. If this contains a single Python file, the file is
migrated, and otherwise the folder. The number beside a status counts the changes left to a person,
or the reasons for a refusal.
"""

from __future__ import annotations

import pathlib
import sys
from collections import Counter

from estimator_bridge import errors
from estimator_bridge.migrate import forms, packages, rewrite_report
from estimator_bridge.migrate.blockers import Refused


def outcome(folder: pathlib.Path, form: str, reasons: Counter[str]) -> str:
    """Returns the status of a migration with the number of reasons, and counts their rules."""
    python = sorted(folder.rglob("*.py"))
    path = python[0] if len(python) == 1 else folder
    row = forms.of_name(form)
    try:
        sources = packages.of_program(path, path.name)
        if path.is_dir():
            new = packages.rewrite_all(row, sources, path)
        else:
            new = {path.name: packages.rewrite_alone(row, sources[0])}
    except Refused as refused:
        rules = [each.rule for each in refused.blockers]
        reasons.update(f"{form} 2 {each}" for each in rules)
        return f"2 ({len(rules)})"
    except errors.EngineError as error:
        reasons[f"{form} 2 {str(error)[:60]}"] += 1
        return "2 (1)"
    except Exception as error:
        reasons[f"{form} fails {error!r:.60}"] += 1
        return "fails"
    marks = [*rewrite_report.left_to_do(new)]
    reasons.update(f"{form} 3 {each.split(': ')[1]}" for each in marks)
    return f"3 ({len(marks)})" if marks else "0"


def main() -> None:
    """Prints a line for each program, and how often each rule is a reason."""
    reasons: Counter[str] = Counter()
    for corpus in map(pathlib.Path, sys.argv[1:]):
        for folder in sorted(each for each in corpus.iterdir() if each.is_dir()):
            cells = [outcome(folder, form, reasons) for form in forms.FORMS]
            sys.stdout.write(f"| `{corpus.name}/{folder.name}` | {' | '.join(cells)} |\n")
            sys.stdout.flush()
    for reason, count in reasons.most_common():
        sys.stdout.write(f"{count} {reason}\n")


if __name__ == "__main__":
    main()
