"""Migrates a whole program (source to source) or a spec (`to_tf2`) to TensorFlow 2.

Rewriting programs needs LibCST: install the extra 'migrate'. Names are imported on first use, so
importing the package does not load TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf2_engine import lazy

if TYPE_CHECKING:
    from estimator_bridge.migrate.bridge_form import adopt
    from estimator_bridge.migrate.keras_form.form import migrate_to_keras
    from estimator_bridge.migrate.legacy_specs.spec_to_tf2 import (
        Change,
        Report,
        TF2Embedding,
        to_tf2,
    )
    from estimator_bridge.migrate.rewrite_report import Line, Rewritten
    from estimator_bridge.migrate.tf2.tf2_form import migrate


__all__ = [
    "Change",
    "Line",
    "Report",
    "Rewritten",
    "TF2Embedding",
    "adopt",
    "migrate",
    "migrate_to_keras",
    "to_tf2",
]

__getattr__, __dir__ = lazy.exports(
    __name__,
    {
        "estimator_bridge.migrate.bridge_form": ["adopt"],
        "estimator_bridge.migrate.keras_form.form": ["migrate_to_keras"],
        "estimator_bridge.migrate.legacy_specs.spec_to_tf2": [
            "Change",
            "Report",
            "TF2Embedding",
            "to_tf2",
        ],
        "estimator_bridge.migrate.rewrite_report": ["Line", "Rewritten"],
        "estimator_bridge.migrate.tf2.tf2_form": ["migrate"],
    },
)
