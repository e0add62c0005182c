"""Programs rewritten, source to source: comments and formatting survive.

Needs LibCST: install the extra 'migrate'.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from estimator_bridge.rewriting.first_form import adopt
    from estimator_bridge.rewriting.report import Line, Rewritten
    from estimator_bridge.rewriting.second_form import migrate

_HOME = {"Line": "report", "Rewritten": "report", "adopt": "first_form", "migrate": "second_form"}

__all__ = ["Line", "Rewritten", "adopt", "migrate"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
