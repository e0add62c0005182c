"""Writes tables of the arguments of every command into docs/commands.md.

`python -m compat_tests.support.commands` updates the tables from the argument parsers.
"""

from __future__ import annotations

import argparse
import re

from compat_tests.support.paths import ROOT
from estimator_bridge.cli import main as cli

PAGE = ROOT / "docs" / "commands.md"
HEAD = "| argument | |\n|---|---|\n"


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Maps the heading of each section to the parser of its command."""
    from compat_tests import __main__ as suite

    return {**cli.parsers()[1], "python -m compat_tests": suite.parser()}


def table(parser: argparse.ArgumentParser) -> str:
    """Creates a table with a row for each argument but `--help`; "" if there are no others."""
    rows = [
        f"| `{_name(action)}` | {action.help} |\n"
        for action in parser._actions
        if not isinstance(action, argparse._HelpAction)
    ]
    return HEAD + "".join(rows) if rows else ""


def _name(action: argparse.Action) -> str:
    if not action.option_strings:
        name = str(action.metavar or action.dest).upper()
        return f"{name} ..." if action.nargs == argparse.REMAINDER else name
    if action.nargs == 0:
        return ", ".join(action.option_strings)
    if action.choices is not None:
        value = f"{{{','.join(str(choice) for choice in action.choices)}}}"
    else:
        value = str(action.metavar or action.dest.upper())
    return ", ".join(f"{option} {value}" for option in action.option_strings)


def sections(text: str) -> dict[str, str]:
    parts = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def table_in(section: str) -> str:
    """Finds the table of arguments in a section; "" if there is none."""
    match = re.search(re.escape(HEAD) + r"(\|.*\n)*", section)
    return match.group() if match else ""


def with_tables(text: str) -> str:
    """Returns the page with current tables at the ends of its sections."""
    for name, section in sections(text).items():
        bare = section.replace(table_in(section), "").rstrip("\n")
        wanted = table(parsers()[name])
        new = f"{bare}\n\n{wanted}\n" if wanted else f"{bare}\n\n"
        text = text.replace(f"## {name}\n{section}", f"## {name}\n{new}")
    return text.rstrip("\n") + "\n"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
