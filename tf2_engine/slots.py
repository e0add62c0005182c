"""Slots that are made by the user, by an optimizer's `slot_variable_creation_fn`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf2_engine import errors, sharding, tf_compat
from tf2_engine.plan import TablePlan
from tf2_engine.types import DType, Initializer, Object, Tensor, Variable

Shards = tuple[Variable, ...]


def whole(shards: Sequence[Variable], name: str) -> Variable:
    """Returns the shards of a variable as one variable [rows, dim]; a single shard as it is."""
    return shards[0] if len(shards) == 1 else tf_compat.ShardedTable(list(shards), name)


def created_by_user(
    table: TablePlan,
    parameters: Shards,
    make: Callable[[str, Initializer], Sequence[Variable]],
) -> dict[str, Shards]:
    """Returns the slots of a table, made by the `slot_variable_creation_fn` of its optimizer.

    The function gets the table as one variable, the names of the slots and their initializers.
    Variables that it makes are spread over hosts as the table is.

    Args:
        make: makes the shards of a variable from its name and `initializer(shape, dtype=...)`.

    Raises:
        InvalidSpec: the function returns other slots than the optimizer has, or one of another
            shape; the message names the table and the slot.
    """
    function = table.optimizer.slot_variable_creation_fn
    assert function is not None
    values = table.optimizer.slot_initial_values()
    in_make = False

    def creator(next_creator: Callable[..., Variable], **settings: Object) -> Variable:
        nonlocal in_make
        if in_make:  # `make` creates the variable of a shard
            return next_creator(**settings)
        in_make = True
        try:
            name = str(settings.get("name") or "slot").split("/")[-1]
            initializer = _by_shard(table, name, settings["initial_value"], len(parameters))
            return whole(make(name, initializer), name)
        finally:
            in_make = False

    with tf.variable_creator_scope(creator):
        created = function(
            whole(parameters, table.name),
            list(values),
            [tf.constant_initializer(value) for value in values.values()],
        )
    if not isinstance(created, dict) or set(created) != set(values):
        returned = sorted(created) if isinstance(created, dict) else repr(created)
        raise errors.InvalidSpec(
            f"Table {table.name!r}: `slot_variable_creation_fn` must return a dict with the slots "
            f"{sorted(values)}, but returned {returned}."
        )
    return {name: _shards(table, name, created[name], parameters) for name in values}


def _by_shard(table: TablePlan, name: str, initial_value: Object, num_shards: int) -> Initializer:
    """Returns an initializer that is called once for each shard, in their order."""
    total = [table.rows, table.dim]
    starts = itertools.cycle(
        sharding.first_row(shard, table.rows, num_shards) for shard in range(num_shards)
    )

    def initialize(shape: tuple[int, int], dtype: DType = tf.float32) -> Tensor:
        start = next(starts)
        if not callable(initial_value):
            value = tf.convert_to_tensor(initial_value, dtype)
        elif isinstance(initial_value, functools.partial) and "shape" in initial_value.keywords:
            # Keras passes its initializers so; a shard alone is made, and never the whole.
            return initial_value.func(**{**initial_value.keywords, "shape": shape})
        else:
            value = initial_value()
        if not value.shape.is_compatible_with(total):
            raise errors.InvalidSpec(
                f"Table {table.name!r}: `slot_variable_creation_fn` must make variables of the "
                f"shape of the table, {total}, but {name!r} starts as {value.shape}."
            )
        return value[start : start + shape[0]]

    return initialize


def _shards(table: TablePlan, name: str, slot: Object, parameters: Shards) -> Shards:
    shards = tuple(slot.variables) if isinstance(slot, tf_compat.ShardedTable) else (slot,)
    shapes, expected = ([one.shape.as_list() for one in each] for each in (shards, parameters))
    if shapes != expected or not all(isinstance(shard, tf.Variable) for shard in shards):
        raise errors.InvalidSpec(
            f"Table {table.name!r}: `slot_variable_creation_fn` must return variables that are "
            f"made while it runs, of the shape of the table, but slot {name!r} is {slot!r}."
        )
    return shards
