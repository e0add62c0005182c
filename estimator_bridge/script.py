"""Runs a program as if it were started by itself."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence


def run_script(script: str, arguments: Sequence[str]) -> None:
    """Runs a script in this process, as `python script.py arguments` would."""
    sys.argv = [script, *arguments]
    # As `python script.py` has it: the program's folder first, to import what lies beside it.
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    runpy.run_path(script, run_name="__main__")
