"""Compares a program on two engines, step by step: `estimator_bridge.verify(...)`.

The package itself is the function of `estimator_bridge.verify.api`, with its signature and
documentation. Importing it loads no TensorFlow.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from estimator_bridge.verify.api import Function
    from estimator_bridge.verify.result import Result
    from tf2_engine.types import Object


class _CallablePackage(types.ModuleType):
    """A package that is called, and inspected, as the function `api.verify`."""

    def __call__(self, *args: Object, **kwargs: Object) -> Result:
        return _function()(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(_function())

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return f"verify{self.__signature__}\n\n{inspect.getdoc(_function())}"


def _function() -> Function:
    return importlib.import_module(f"{__name__}.api").verify


sys.modules[__name__].__class__ = _CallablePackage
