"""Helps with calls between a program and this library: selects arguments, finds the caller."""

from __future__ import annotations

import inspect
import os
import sys

from tf2_engine.types import Function, Object


def call(function: Function, arguments: Object) -> Object:
    if not isinstance(arguments, dict):
        several = isinstance(arguments, list | tuple)
        return function(*arguments) if several else function(arguments)
    parameters = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return function(**arguments)
    return function(**{name: value for name, value in arguments.items() if name in parameters})


def frames_to_the_caller() -> int:
    """Computes the `stacklevel` for a warning about the line that calls the engine."""
    import tensorflow as tf

    own_folders = (os.path.dirname(__file__), os.path.dirname(tf.__file__))
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(own_folders):
        frame, level = frame.f_back, level + 1
    return level
