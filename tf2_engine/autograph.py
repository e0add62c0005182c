"""Keeps AutoGraph away from the engine's own code, in which there is nothing to convert."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

_Function = TypeVar("_Function", bound=Callable[..., Any])


def as_written(function: _Function) -> _Function:
    """Returns the function as every tf.function that calls it runs it: unconverted."""
    unconverted: _Function = tf.autograph.experimental.do_not_convert(function)
    return unconverted
