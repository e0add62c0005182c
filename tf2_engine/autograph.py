"""Keeps AutoGraph from converting the engine's own code, which has nothing to convert."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf

_Function = TypeVar("_Function", bound=Callable[..., object])


def do_not_convert(function: _Function) -> _Function:
    """Returns a function that AutoGraph leaves as it is, in every tf.function that calls it."""
    unconverted: _Function = tf.autograph.experimental.do_not_convert(function)
    return unconverted
