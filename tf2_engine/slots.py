"""Slots that the user makes: by an optimizer's `slot_variable_creation_fn`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf2_engine import errors, tf_compat
from tf2_engine.plan import TablePlan

Shards = tuple[tf.Variable, ...]


def whole(shards: Sequence[tf.Variable], name: str) -> Any:
    """Returns the shards of a variable as one: [rows, dim]; a single shard as it is."""
    return shards[0] if len(shards) == 1 else tf_compat.ShardedTable(list(shards), name)


def created_by_user(
    table: TablePlan,
    parameters: Shards,
    shapes: Sequence[tuple[int, int]],
    make: Callable[[str, Callable[..., Any]], Sequence[tf.Variable]],
) -> dict[str, Shards]:
    """Returns the slots of a table, made by the `slot_variable_creation_fn` of its optimizer.

    The function gets the table as one variable, the names of the slots and their initializers.
    Variables that it makes are spread over hosts as the table is.

    Args:
        table: a table whose optimizer has such a function.
        parameters: the shards of the table.
        shapes: [rows, dim] of each shard.
        make: makes the shards of a variable from its name and `initializer(shape, dtype=...)`.

    Raises:
        InvalidSpec: the function returns other slots than the optimizer has, or one of another
            shape; the message names the table and the slot.
    """
    function = table.optimizer.slot_variable_creation_fn
    assert function is not None
    values = table.optimizer.slot_initial_values()
    making = False

    def creator(next_creator: Callable[..., Any], **given: Any) -> Any:
        nonlocal making
        if making:  # this is the table's own way to make a variable
            return next_creator(**given)
        making = True
        try:
            name = str(given.get("name") or "slot").split("/")[-1]
            initializer = _by_shard(table, name, given["initial_value"], shapes)
            return whole(make(name, initializer), name)
        finally:
            making = False

    with tf.variable_creator_scope(creator):
        made = function(
            whole(parameters, table.name),
            list(values),
            [tf.constant_initializer(value) for value in values.values()],
        )
    if not isinstance(made, dict) or set(made) != set(values):
        raise errors.InvalidSpec(
            f"Table {table.name!r}: `slot_variable_creation_fn` must return a dict with the slots "
            f"{sorted(values)}, but returned {sorted(made) if isinstance(made, dict) else made!r}."
        )
    return {name: _shards(table, name, made[name], parameters) for name in values}


def _by_shard(
    table: TablePlan, name: str, initial_value: Any, shapes: Sequence[tuple[int, int]]
) -> Callable[..., Any]:
    """Returns an initializer that is called once for each shard, in their order."""
    total = [sum(rows for rows, _ in shapes), shapes[0][1]]
    first_rows = [sum(rows for rows, _ in shapes[:number]) for number in range(len(shapes))]
    starts = iter(first_rows)

    def initialize(shape: tuple[int, int], dtype: Any = tf.float32) -> Any:
        start = next(starts, 0)
        if not callable(initial_value):
            value = tf.convert_to_tensor(initial_value, dtype)
        elif isinstance(initial_value, functools.partial) and "shape" in initial_value.keywords:
            # As Keras writes it; so a shard's part is made, and never the whole.
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


def _shards(table: TablePlan, name: str, slot: Any, parameters: Shards) -> Shards:
    shards = tuple(slot.variables) if isinstance(slot, tf_compat.ShardedTable) else (slot,)
    wanted = [shard.shape.as_list() for shard in parameters]
    if not all(isinstance(shard, tf.Variable) for shard in shards) or wanted != [
        shard.shape.as_list() for shard in shards
    ]:
        raise errors.InvalidSpec(
            f"Table {table.name!r}: `slot_variable_creation_fn` must return variables that are "
            f"made while it runs, of the shape of the table, but slot {name!r} is {slot!r}."
        )
    return shards
