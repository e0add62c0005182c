"""Checkpoints: what they hold, and how one form becomes the other."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from estimator_bridge.convert.conversion import convert
    from estimator_bridge.convert.inspection import inspect

__all__ = ["convert", "inspect"]

_HOME = {"convert": "conversion", "inspect": "inspection"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
