"""Wraps functions and methods of programs, so that those who inspect them see no difference."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

from estimator_bridge.legacy.checks import argument_names
from tf2_engine.types import Object

Function = Callable[..., Object]
Arguments = dict[str, Object]
"""The arguments of a call by name."""

_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def intercepted(original: Function, replacement: Function) -> Function:
    """Returns a method that calls `replacement(original, self, arguments)`."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def method(self: Object, *args: Object, **kwargs: Object) -> Object:
        arguments = dict(signature.bind(self, *args, **kwargs).arguments)
        arguments.pop(next(iter(signature.parameters)))
        return replacement(original, self, arguments)

    return method


def with_signature_of(function: Function, wrapper: Function) -> Function:
    """Returns `wrapper`, with the signature of the arguments that `function` still takes.

    Estimators look at it to know which arguments to pass.
    """
    wrapper.__signature__ = remaining_signature(function)  # type: ignore[attr-defined]
    return wrapper


def remaining_signature(function: Function) -> inspect.Signature:
    """Returns the signature of a function without what a partial has fixed."""
    signature = inspect.signature(function)
    names = argument_names(function)
    remaining = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.name in names or parameter.kind in _ANY_NUMBER
    ]
    return signature.replace(parameters=remaining)
