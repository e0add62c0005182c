"""Variables: plain variables, the shards of a variable, and initializers."""

from __future__ import annotations

import functools

import tensorflow as tf
from tensorflow.python.distribute import sharded_variable as _sharded_variable
from tensorflow.python.ops import init_ops as _init_ops
from tensorflow.python.ops import init_ops_v2 as _init_ops_v2
from tensorflow.python.ops import resource_variable_ops as _resource_variable_ops
from tensorflow.python.trackable import base as _trackable_base

from tf2_engine.types import DType, Tensor, Variable


def plain_variable(**arguments: object) -> Variable:
    """Creates a single resource variable under any strategy.

    Under MirroredStrategy, `tf.Variable` would create a copy per replica. Keras optimizers check
    that a variable belongs to the strategy, and this variable passes the check.
    """
    strategy = tf.distribute.get_strategy() if tf.distribute.has_strategy() else None
    return _resource_variable_ops.ResourceVariable(distribute_strategy=strategy, **arguments)


ShardInfo = _trackable_base.ShardInfo
"""The type of `shard_info`, an argument of stock's initializers, for annotations of users."""


# The base class of stock's sharded tables. The public class is a composite tensor.
class ShardedTable(_sharded_variable.ShardedVariableMixin):
    """The shards of a table, each with consecutive rows, as one variable [rows, dim].

    It can be read, assigned and saved like stock's tables, and Keras optimizers can create slots
    for it.
    """

    name: str
    dtype: DType
    variables: list[Variable]

    @property
    def _in_graph_mode(self) -> bool:
        return bool(self.variables[0]._in_graph_mode)

    def __tf_tensor__(self, dtype: DType | None = None, name: str | None = None) -> Tensor:
        if dtype is not None and not dtype.is_compatible_with(self.dtype):
            raise ValueError(f"{self.name} is {self.dtype.name}, and cannot be read as {dtype}.")
        return tf.concat([shard.read_value() for shard in self.variables], 0, name or "read")


@functools.cache
def initializers() -> dict[str, type]:
    return {
        f"{generation}.{name}": kind
        for generation, module in (("v1", _init_ops), ("v2", _init_ops_v2))
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, module.Initializer)
        # The module also contains aliases, which are skipped.
        if kind.__name__ == name
    }
