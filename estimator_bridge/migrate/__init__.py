"""Migration to TensorFlow 2: of a whole program, source to source, or of a spec (`to_tf2`).

Rewriting programs needs LibCST: install the extra 'migrate'. Names are imported when they are
first used: importing the package loads no TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from estimator_bridge.migrate.bridge_form import adopt
    from estimator_bridge.migrate.config_report import Change, Report
    from estimator_bridge.migrate.report import Line, Rewritten
    from estimator_bridge.migrate.spec_to_tf2 import TF2Embedding, to_tf2
    from estimator_bridge.migrate.tf2_form import migrate

_HOME = {
    "Change": "config_report",
    "Line": "report",
    "Report": "config_report",
    "Rewritten": "report",
    "TF2Embedding": "spec_to_tf2",
    "adopt": "bridge_form",
    "migrate": "tf2_form",
    "to_tf2": "spec_to_tf2",
}

__all__ = ["Change", "Line", "Report", "Rewritten", "TF2Embedding", "adopt", "migrate", "to_tf2"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
