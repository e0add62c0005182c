"""The paths of the project's files."""

from __future__ import annotations

import pathlib

SUITE = pathlib.Path(__file__).resolve().parent.parent
"""The package `compat_tests`."""

ROOT = SUITE.parent
"""The root of the project, where tests run commands."""

EXAMPLES = ROOT / "examples"
GOLDENS = SUITE / "goldens"
