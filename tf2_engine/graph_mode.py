"""Hides the differences between graph mode and eager mode.

In a plain `tf.Graph`, the engine's calls return an op that the caller must run. Elsewhere they
return None.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

import tensorflow as tf

from tf2_engine.types import Op, Tensor

_Function = TypeVar("_Function", bound=Callable[..., object])


def building_graph() -> bool:
    return not tf.executing_eagerly() and not tf.inside_function()


def to_run(op: Op | Sequence[Op]) -> Op:
    """Groups ops that the caller must run in a plain graph. Returns None outside a graph."""
    if not building_graph():
        return None
    if isinstance(op, (list, tuple)):
        return tf.group(*(each for each in op if each is not None))
    return tf.no_op() if op is None else op


def run_after(ops: Sequence[Op]) -> AbstractContextManager[None]:
    """Makes ops that are created in the context wait for `ops`. Eager ops do not wait."""
    return tf.control_dependencies(
        [] if tf.executing_eagerly() else [op for op in ops if op is not None]
    )


def run_if(condition: Tensor | bool, action: Callable[[], Op]) -> Op:
    if not isinstance(condition, bool) and tf.executing_eagerly():
        condition = bool(condition)
    if isinstance(condition, bool):
        return action() if condition else None

    def run() -> Tensor:
        with run_after([action()]):
            return tf.constant(True)

    return tf.cond(condition, run, lambda: tf.constant(False))


def do_not_convert(function: _Function) -> _Function:
    unconverted: _Function = tf.autograph.experimental.do_not_convert(function)
    # Keras 2 reads the signature of a layer's `call`, but not through TensorFlow's wrapper.
    unconverted.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return unconverted
