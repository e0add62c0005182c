"""The paths of the project's files."""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Any

SUITE = pathlib.Path(__file__).resolve().parent.parent
"""The package `compat_tests`."""

ROOT = SUITE.parent
"""The root of the project, where tests run commands."""

EXAMPLES = ROOT / "examples"
GOLDENS = SUITE / "goldens"


def ci_module(name: str) -> Any:
    """Imports a module of the folder .ci, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
