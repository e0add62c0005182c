"""A server refuses messages that differ from those of a core's ops, and changes no row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.native.test_native_bad_input import OPTIMIZER
from tf2_engine.native import loading

ROWS, DIM, SERVERS = 5, 2, 3
"""Rows of each of two tables on this server, of which the ids are 1, 4, 7, 10 and 13."""
PART: dict[str, list[int]] = {
    "rows": [ROWS] * 2,
    "steps": [SERVERS] * 2,
    "range_counts": [1] * 2,
    "firsts": [1] * 2,
    "starts": [0] * 2,
}


@pytest.fixture(scope="module")
def ops() -> Any:
    return loading.host_ops(True)


def variables(count: int) -> list[tf.Variable]:
    """Returns variables of tables, each filled with ones."""
    return [tf.Variable(tf.ones([ROWS, DIM])) for _ in range(count)]


def integers(values: list[int]) -> tf.Tensor:
    """Returns a vector of int64."""
    return tf.constant(values, tf.int64)


REQUESTS: dict[str, tuple[list[int], str]] = {
    "fewer ids than it says": ([1, 2, 1, 4], "not have the stated size"),
    "more ids than it says": ([1, 1, 1, 4, 7], "not have the stated size"),
    "a negative number": ([-1, 3, 1, 4], "not have the stated size"),
    "a huge number": ([2**62, 2**62, 1], "not have the stated size"),
    "no header": ([1], "not have the stated size"),
    "a row of another server": ([1, 1, 1, 5], "does not hold row 5"),
    "a negative row": ([1, 1, -2, 4], "does not hold row -2"),
    "a row beyond the table": ([1, 1, 1, 16], "does not hold row 16"),
}


def test_a_request_is_answered(ops: Any) -> None:
    """With the rows of both tables, one after the other."""
    tables = variables(2)
    tables[1].assign(tf.reshape(tf.range(10.0), [ROWS, DIM]))
    handles = [table.handle for table in tables]
    request = integers([1, 2, 13, 4, 13])
    answer = ops.tf2_engine_serve(parameters=handles, request=request, dims=[DIM] * 2, **PART)
    np.testing.assert_array_equal(answer, [1, 1, 2, 3, 8, 9])


@pytest.mark.parametrize("name", REQUESTS)
def test_a_wrong_request_is_refused(name: str, ops: Any) -> None:
    """Numbers of ids that do not fit, and rows that are elsewhere, or nowhere."""
    request, message = REQUESTS[name]
    handles = [table.handle for table in variables(2)]
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops.tf2_engine_serve(parameters=handles, request=integers(request), dims=[DIM] * 2, **PART)


MESSAGES: dict[str, tuple[list[int], int, str]] = {
    "fewer ids than it says": ([2, 0, 1, 0, 1, 4], 6, "not have the stated size"),
    "fewer gradients than ids": ([1, 0, 1, 0, 1, 4], 3, "not have the stated size"),
    "more gradients than ids": ([1, 0, 1, 0, 1, 4], 5, "not have the stated size"),
    "a negative number": ([-1, 0, 3, 0, 1, 4], 4, "not have the stated size"),
    "a huge number": ([2**62, 2**62, 1, 0, 1], 4, "not have the stated size"),
    "huge cells": ([1, 2**62, 0, 0, 1, 0], 4, "not have the stated size"),
    "no header": ([1, 0], 2, "not have the stated size"),
    "a negative row": ([1, 0, 1, 0, -2, 4], 4, "'first': this server does not hold row -2"),
    "a cell that is not there": ([1, 1, 0, 0, 1, 1], 3, "not have the stated size"),
    "a negative cell": ([1, 1, 0, 0, 1, -1], 3, "not have the stated size"),
    "a row of another server": ([1, 0, 1, 0, 1, 5], 4, "'second': this server does not hold row 5"),
}


def receive(ops: Any, tables: list[tf.Variable], numbers: list[int], floats: int) -> None:
    """Sends the gradients of one core to both tables."""
    ops.tf2_engine_receive(
        variables=[table.handle for table in tables],
        numbers=[integers(numbers)],
        floats=[tf.ones([floats])],
        rates=[tf.constant(0.5)] * 2,
        dims=[DIM] * 2,
        optimizers=[OPTIMIZER] * 2,
        sent_dims=[DIM] * 2,
        numbers_in_message=[0, 1],
        names=["Table 'first'", "Table 'second'"],
        **PART,
    )


@pytest.mark.parametrize("name", MESSAGES)
def test_wrong_gradients_are_refused(name: str, ops: Any) -> None:
    """Numbers that do not fit, and cells and rows that are not there; no table is changed."""
    numbers, floats, message = MESSAGES[name]
    tables = variables(4)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        receive(ops, tables, numbers, floats)
    for table in tables:
        np.testing.assert_array_equal(table, np.ones([ROWS, DIM]))


def test_gradients_of_both_forms_are_applied(ops: Any) -> None:
    """The first table has two ids of one cell, the second one id with a gradient of its own."""
    tables = variables(4)
    receive(ops, tables, [2, 1, 1, 0, 1, 4, 0, 0, 7], 2 + 2 + 2)
    changed = np.array([[True], [True], [False], [False], [False]]), np.arange(5)[:, None] == 2
    for parameters, accumulators, rows in zip(tables[::2], tables[1::2], changed, strict=True):
        sums = np.where(rows, 2.0, 1.0) * np.ones(DIM)
        np.testing.assert_array_equal(accumulators, sums)
        expected = np.where(rows, 1 - np.float32(0.5) / np.sqrt(np.float32(2)), 1.0)
        np.testing.assert_allclose(parameters, expected * np.ones(DIM), rtol=1e-6)
