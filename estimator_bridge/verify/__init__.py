"""Compares a program on two engines, step by step: `estimator_bridge.verify(...)`.

The package itself can be called like the function `estimator_bridge.verify.api.verify`. Importing
it does not load TensorFlow.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from estimator_bridge.verify.result import Result
    from tf2_engine.types import Object


class _CallablePackage(types.ModuleType):
    """A package that is called, and inspected, as the function `api.verify`."""

    @property
    def _function(self) -> Object:
        return importlib.import_module(f"{__name__}.api").verify

    def __call__(self, *args: Object, **kwargs: Object) -> Result:
        return self._function(*args, **kwargs)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return f"verify{self.__signature__}\n\n{inspect.getdoc(self._function)}"


sys.modules[__name__].__class__ = _CallablePackage
