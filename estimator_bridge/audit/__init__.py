"""What stock ignores or treats surprisingly in a program, and what its tables cost.

Names are imported when they are first used: importing the package loads no TensorFlow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from estimator_bridge.audit.of_model_dir import audit_model_dir
    from estimator_bridge.audit.of_script import audit_script
    from estimator_bridge.audit.of_spec import audit_spec
    from estimator_bridge.audit.report import Audit, Finding
    from estimator_bridge.audit.running import audit_run

_HOME = {
    "Audit": "report",
    "Finding": "report",
    "audit_model_dir": "of_model_dir",
    "audit_run": "running",
    "audit_script": "of_script",
    "audit_spec": "of_spec",
}

__all__ = ["Audit", "Finding", "audit_model_dir", "audit_run", "audit_script", "audit_spec"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
