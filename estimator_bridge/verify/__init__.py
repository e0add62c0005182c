"""Compares a program on two engines, step by step: `estimator_bridge.verify(...)`.

The package can be called: the call is that of `estimator_bridge.verify.api.verify`. Importing it
loads no TensorFlow.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any


class _CallablePackage(types.ModuleType):
    """A package that is also the function that users call."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return importlib.import_module(f"{__name__}.api").verify(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
