"""Calls a program's function with only those arguments that it accepts."""

from __future__ import annotations

import inspect

from tf2_engine.types import Function, Object


def call(function: Function, arguments: Object) -> Object:
    if not isinstance(arguments, dict):
        several = isinstance(arguments, list | tuple)
        return function(*arguments) if several else function(arguments)
    parameters = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return function(**arguments)
    return function(**{name: value for name, value in arguments.items() if name in parameters})
