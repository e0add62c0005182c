"""Runs a program as if it were started by itself."""

from __future__ import annotations

import ast
import os
import pathlib
import runpy
import sys
from collections.abc import Sequence


def run_script(script: str, arguments: Sequence[str]) -> None:
    """Runs a script in this process, as `python script.py arguments` would."""
    sys.argv = [script, *arguments]
    # As `python script.py` has it: the program's folder first, to import what lies beside it.
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    runpy.run_path(script, run_name="__main__")


def imports_bridge(script: str) -> bool:
    """Returns whether a script imports the bridge itself, as programs of `migrate` do."""
    try:
        tree = ast.parse(pathlib.Path(script).read_bytes())
    except SyntaxError:  # It is reported when the script runs.
        return False
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return any(name.partition(".")[0] == "estimator_bridge" for name in names)
