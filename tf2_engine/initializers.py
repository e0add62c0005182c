"""Checks and calls the initializers of tables.

An initializer is called as `initializer(shape, dtype=tf.float32)`, once for the rows of each host.
If it also has an argument `shard_info`, it is called through `ByShard`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Mapping

import tensorflow as tf

from tf2_engine import errors, sharding, tf_compat
from tf2_engine.optimizers.optimizer import optimization_barrier
from tf2_engine.types import DType, Initializer, Object, Tensor

WAY_OUT = (
    "Pass a function of a shape and a dtype, such as an initializer of tf.initializers. If the "
    "function needs to know which rows it makes, give it an argument `shard_info` too."
)


def check(table: str | None, initializer: Object) -> None:
    if not callable(initializer):
        raise errors.InvalidSpec(
            f"Table {table!r}: `initializer` must be callable, got {initializer!r}. {WAY_OUT}"
        )
    parameters = _parameters(initializer)
    if parameters is None:
        return
    # `tf.compat.v1.get_variable` passes `partition_info` to initializers of partitioned variables.
    extra = {name: None for name in ("shard_info", "partition_info") if name in parameters}
    try:
        inspect.signature(initializer).bind((1, 1), dtype=tf.float32, **extra)
    except TypeError as error:
        raise errors.InvalidSpec(
            f"Table {table!r}: `initializer` cannot be called with a shape and a dtype ({error}): "
            f"{initializer!r}. {WAY_OUT}"
        ) from error


def takes_shard_info(initializer: Initializer) -> bool:
    return "shard_info" in (_parameters(initializer) or ())


def filled(value: float) -> Initializer:
    """Like tf.constant_initializer, but does not add a table-sized constant to a graph."""

    def fill(shape: tuple[int, int], dtype: DType = tf.float32) -> Tensor:
        return tf.fill(shape, optimization_barrier(tf.constant(value, dtype)))

    return fill


@dataclasses.dataclass(frozen=True, eq=False)
class ByShard:
    """Calls an initializer that has an argument `shard_info`, once for each shard of a table.

    As in stock's TPUEmbedding, the initializer gets the shape of the whole table, [vocabulary,
    dim], and the `shape` and `offset` of the part to return. With "div", the part is the host's
    consecutive rows. With "mod", it is the whole table, from which the host then takes its rows. A
    shard without a row of the vocabulary gets zeros.
    """

    initializer: Initializer
    table: str
    whole: tuple[int, int]
    num_hosts: int
    strategy: str

    def __call__(self, shape: tuple[int, int], dtype: DType = tf.float32) -> Tensor:
        if self.num_hosts > 1:
            raise errors.InvalidSpec(
                f"Table {self.table!r}: its initializer takes `shard_info`, but the code that "
                f"creates the variables of {self.num_hosts} hosts does not pass it. Use an "
                "initializer that takes only a shape and a dtype, or use only one host."
            )
        return self.rows_of(0, shape, dtype)

    def rows_of(self, shard: int, shape: tuple[int, int], dtype: DType) -> Tensor:
        rows = self.whole[0]
        if shard >= rows:
            return tf.zeros(shape, dtype)
        make = functools.partial(self.initializer, self.whole, dtype=dtype)
        if self.strategy == "div":
            first = sharding.first_row(shard, max(rows, self.num_hosts), self.num_hosts)
            return make(shard_info=tf_compat.ShardInfo(tuple(shape), (first, 0)))
        value = make(shard_info=tf_compat.ShardInfo(self.whole, (0, 0)))
        return tf.convert_to_tensor(value)[shard :: self.num_hosts]


def initial_value(
    table: str, initializer: Initializer, shard: int, shape: tuple[int, int]
) -> Tensor:
    if isinstance(initializer, ByShard):
        value = initializer.rows_of(shard, shape, tf.float32)
    else:
        value = initializer(shape, dtype=tf.float32)
    if isinstance(value, tf.Tensor) and value.dtype != tf.float32:
        raise errors.InvalidSpec(
            f"Table {table!r}: its initializer was asked for float32, but returned "
            f"{value.dtype.name}. {WAY_OUT}"
        )
    value = tf.convert_to_tensor(value, tf.float32)
    if not value.shape.is_compatible_with(shape):
        raise errors.InvalidSpec(
            f"Table {table!r}: its initializer was asked for the rows of host {shard}, with "
            f"shape {tuple(shape)}, but returned {tuple(value.shape.as_list())}. {WAY_OUT}"
        )
    return value


def _parameters(initializer: Initializer) -> Mapping[str, inspect.Parameter] | None:
    try:
        return inspect.signature(initializer).parameters
    except (TypeError, ValueError):  # a built-in has no signature, so it is checked by calling it
        return None
