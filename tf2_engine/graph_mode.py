"""Differences between graph mode and eager mode, all in one place: what is returned, what waits.

In a plain `tf.Graph` a call adds ops that its caller must run, so it returns them. Eagerly it has
taken effect when it returns, and in a tf.function it takes effect when the function runs: there it
returns None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

import tensorflow as tf

from tf2_engine.types import Op, Tensor

_Function = TypeVar("_Function", bound=Callable[..., object])


def building_graph() -> bool:
    """Returns whether a plain `tf.Graph` is under construction, whose ops its builder must run."""
    return not tf.executing_eagerly() and not tf.inside_function()


def to_run(op: Op | Sequence[Op]) -> Op:
    """Returns the op that a caller must run: in a plain graph one op, elsewhere None.

    A list of ops is grouped; entries that are None are left out.
    """
    if not building_graph():
        return None
    if isinstance(op, (list, tuple)):
        return tf.group(*(each for each in op if each is not None))
    return tf.no_op() if op is None else op


def run_after(ops: Sequence[Op]) -> AbstractContextManager[None]:
    """Makes the ops created in the context wait for `ops`; entries that are None are left out.

    Eagerly there is nothing to wait for.
    """
    return tf.control_dependencies(
        [] if tf.executing_eagerly() else [op for op in ops if op is not None]
    )


def run_if(condition: Tensor | bool, action: Callable[[], Op]) -> Op:
    """Runs an action if a condition holds; returns the op, None if it is known not to hold.

    A scalar bool tensor may be known only when a graph runs.
    """
    if not isinstance(condition, bool) and tf.executing_eagerly():
        condition = bool(condition)
    if isinstance(condition, bool):
        return action() if condition else None

    def run() -> Tensor:
        with run_after([action()]):
            return tf.constant(True)

    return tf.cond(condition, run, lambda: tf.constant(False))


def do_not_convert(function: _Function) -> _Function:
    """Keeps AutoGraph from converting a function of the engine, which has nothing to convert."""
    unconverted: _Function = tf.autograph.experimental.do_not_convert(function)
    return unconverted
