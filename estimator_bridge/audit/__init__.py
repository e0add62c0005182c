"""Audits programs: which settings stock ignores or treats oddly, and how large the tables are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf2_engine import lazy

if TYPE_CHECKING:
    from estimator_bridge.audit.of_model_dir import audit_model_dir
    from estimator_bridge.audit.of_script import audit_folder, audit_script
    from estimator_bridge.audit.of_sparse_cores import Target
    from estimator_bridge.audit.of_tables import audit_run, audit_spec
    from estimator_bridge.audit.report import Audit, Finding

__getattr__, __dir__ = lazy.exports(
    __name__,
    {
        "estimator_bridge.audit.of_model_dir": ["audit_model_dir"],
        "estimator_bridge.audit.of_script": ["audit_folder", "audit_script"],
        "estimator_bridge.audit.of_sparse_cores": ["Target"],
        "estimator_bridge.audit.of_tables": ["audit_run", "audit_spec"],
        "estimator_bridge.audit.report": ["Audit", "Finding"],
    },
)
