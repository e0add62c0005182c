"""Copies the parameters of tables into variables for serving, optionally in a small type."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from tf2_engine import errors, small_types
from tf2_engine.tables import PARAMETERS, Table
from tf2_engine.types import Array, Object, Variable

_ELEMENTS_AT_ONCE = 1 << 22


def serving_table(
    parameters: Object, table_dtype: str = "float32", name: str | None = None
) -> Variable | tuple[Variable, ...]:
    """Copies a table's parameters for `cpu_embedding_lookup`.

        module.words = serving_table(engine.embedding_tables[words], "int8")

    Args:
        parameters: [vocabulary, dim] float32, as a variable, a tensor or an array, or shards as in
            `TPUEmbedding.embedding_tables`.
        table_dtype: the type of the copy: "float32", "float16", "bfloat16" or "int8". Lookups
            always return float32; `small_types` gives bounds on the errors of lookups.
        name: the name of the variable, which messages also use.

    Returns:
        A variable that is not trainable, [vocabulary, dim] of the given type. For "int8" it is
            [vocabulary, dim + 8] uint8: codes, then the row's scale and lowest value. For a tuple
            of shards, the result is a tuple of variables.

    Raises:
        InvalidSpec: the type is unknown, or a row has values out of the type's range; the message
            has the row's number.
        WrongType: the parameters are not a matrix of floating-point numbers.
        OutOfOrder: a graph is being built, so the parameters have no values yet.
    """
    where = f"Table {name!r}" if name else "The table"
    dtype = small_types.checked(table_dtype, [""])[""]
    with tf.init_scope():
        if not tf.executing_eagerly():
            raise errors.OutOfOrder(
                f"{where}: `serving_table` reads the table's rows, which have no values while a "
                "graph is built. Call `serving_table` eagerly; `export_saved_model` of an "
                "estimator or a Trainer takes a `table_dtype`."
            )
        if _are_shards(parameters):
            return tuple(_variable([shard], dtype, where, name) for shard in parameters)
        shards = getattr(parameters, "variables", (parameters,))
        return _variable(shards, dtype, where, name)


def small_table(table: Table, table_dtype: str) -> Table:
    shards = tuple(
        small_variable(shard, table_dtype, table.plan.name) for shard in table.variables[PARAMETERS]
    )
    return dataclasses.replace(table, variables={PARAMETERS: shards})


def small_variable(variable: Variable, table_dtype: str, name: str) -> Variable:
    if table_dtype == "float32":
        return variable
    return _variable([variable], table_dtype, f"Table {name!r}", name)


def _variable(shards: Sequence[Object], table_dtype: str, where: str, name: str | None) -> Variable:
    matrices = [_matrix(shard, where) for shard in shards]
    rows, dim = sum(int(each.shape[0]) for each in matrices), int(matrices[0].shape[1])
    stored = np.empty(
        [rows, small_types.stored_width(dim, table_dtype)],
        small_types.stored_dtype(table_dtype).as_numpy_dtype,
    )
    done = 0
    for part in _parts(matrices, max(1, _ELEMENTS_AT_ONCE // dim)):
        stored[done : done + len(part)] = small_types.encode(part, table_dtype, where, done)
        done += len(part)
    return tf.Variable(stored, trainable=False, name=name)


def _are_shards(value: Object) -> bool:
    is_sequence = isinstance(value, (list, tuple)) and len(value) > 0
    return is_sequence and all(len(getattr(each, "shape", ())) == 2 for each in value)


def _matrix(shard: Object, where: str) -> Object:
    matrix = shard if hasattr(shard, "dtype") else np.asarray(shard)
    if len(matrix.shape) != 2 or not tf.as_dtype(matrix.dtype).is_floating:
        raise errors.WrongType(
            f"{where}: `parameters` must be a matrix [vocabulary, dim] of floating-point numbers, "
            f"got {tuple(matrix.shape)} of {tf.as_dtype(matrix.dtype).name}."
        )
    return matrix


def _parts(matrices: Sequence[Object], rows_at_once: int) -> Iterator[Array]:
    """Yields a few rows at a time as float32: a copy of the whole table may not fit in memory."""
    for matrix in matrices:
        for start in range(0, int(matrix.shape[0]), rows_at_once):
            yield np.asarray(matrix[start : start + rows_at_once], np.float32)
