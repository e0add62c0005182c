"""Inspects checkpoints, and converts them between legacy estimators and TF2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf2_engine import lazy

if TYPE_CHECKING:
    from estimator_bridge.convert.conversion import convert
    from estimator_bridge.convert.inspection import inspect

__getattr__, __dir__ = lazy.exports(
    __name__,
    {
        "estimator_bridge.convert.conversion": ["convert"],
        "estimator_bridge.convert.inspection": ["inspect"],
    },
)
