"""Seeds the random ops of a graph in order, so that every engine draws the same values."""

from __future__ import annotations

import collections
import contextlib
import itertools
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import random_seed as _random_seed
from tensorflow.python.ops import gen_random_ops as _gen_random_ops
from tensorflow.python.ops import gen_stateless_random_ops as _gen_stateless_random_ops

from tf2_engine.tf_compat.tpu import core_now, patched
from tf2_engine.types import Array, Object, Tensor, Variable

SEEDS_PER_CORE = 1 << 16
"""The difference between the seeds of the same random op on two neighbouring cores."""


@contextlib.contextmanager
def numbered_seeds(first: int = 0) -> Iterator[None]:
    """In this context, random ops without a seed get consecutive seeds, starting at `first`.

    TensorFlow would derive seeds from the graph's number of ops. The values of an op depend only on
    its seed and on how often it has run. Seeds of ops that compute initial values are numbered
    separately. These ops are missing when a function that creates variables is traced again, and
    the other seeds must not change.
    """
    stock = _random_seed.get_seed
    of_variables = itertools.count(first)
    numbers = [itertools.count(first)]

    def get_seed(op_seed: int | None) -> tuple[int | None, int | None]:
        return stock(next(numbers[-1]) if op_seed is None else op_seed)

    def creator(next_creator: Callable[..., Variable], **settings: object) -> Variable:
        numbers.append(of_variables)
        try:
            return next_creator(**settings)
        finally:
            numbers.pop()

    def is_counted() -> bool:
        return len(numbers) == 1 and not tf.executing_eagerly()

    with contextlib.ExitStack() as stack:
        stack.enter_context(patched(_random_seed, "get_seed", get_seed))
        stack.enter_context(tf.variable_creator_scope(creator))
        for name in _STATELESS:
            counted = _counted(name, is_counted)
            stack.enter_context(patched(_gen_random_ops, name, counted))
        yield


class _Runs:
    beginnings = 0

    def __init__(self) -> None:
        self._number, self._beginning = 0, _Runs.beginnings

    def next(self) -> int:
        if self._beginning != _Runs.beginnings:
            self._number, self._beginning = 0, _Runs.beginnings
        self._number += 1
        return self._number - 1


def begin_random_numbers_anew() -> None:
    _Runs.beginnings += 1


_STATELESS = {
    "random_uniform": (_gen_stateless_random_ops.stateless_random_uniform, ("shape", "dtype")),
    "random_uniform_int": (
        _gen_stateless_random_ops.stateless_random_uniform_int,
        ("shape", "minval", "maxval"),
    ),
    "random_standard_normal": (
        _gen_stateless_random_ops.stateless_random_normal,
        ("shape", "dtype"),
    ),
    "truncated_normal": (_gen_stateless_random_ops.stateless_truncated_normal, ("shape", "dtype")),
}


def _counted(name: str, is_on: Callable[[], bool]) -> Callable[..., Tensor]:
    stateful = getattr(_gen_random_ops, name)
    stateless, names = _STATELESS[name]

    def draw(*args: Object, **kwargs: Object) -> Tensor:
        if not is_on():
            return stateful(*args, **kwargs)
        arguments = {**dict(zip((*names, "seed", "seed2", "name"), args, strict=False)), **kwargs}
        seeds = [arguments.pop(name, None) or 0 for name in ("seed", "seed2")]
        runs_of_cores: collections.defaultdict[int, _Runs] = collections.defaultdict(_Runs)

        def state(core: Array) -> Array:
            # Copies of the op on other cores also call this function.
            seed = (seeds[0] << 31) + seeds[1] + int(core) * SEEDS_PER_CORE
            return np.array([seed, runs_of_cores[int(core)].next()], np.int64)

        counted = tf.numpy_function(state, [core_now()], tf.int64)
        counted.set_shape([2])
        return stateless(**arguments, seed=counted)

    return draw
