"""Ids with row splits give bitwise the same results as ids with a cell and a gain each."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from compat_tests.native.test_native_bad_input import occurrences
from tf2_engine import Adagrad, EngineSpec, FeatureSpec, TableSpec
from tf2_engine.config_proto import optimizer_proto
from tf2_engine.native import loading
from tf2_engine.plan import make_plan

Array = npt.NDArray[Any]

ROWS = 37
# Those with a kernel of their own, one below and above each kind, and one of several blocks.
WIDTHS = (1, 8, 15, 16, 17, 32, 48, 64, 96, 128, 130)
COMBINERS = ("sum", "mean", "sqrtn")


class Batch:
    """Rows of ids, some of them empty: the first, the last, and two beside each other."""

    def __init__(self, seed: int, num_rows: int, most: int) -> None:
        chance = np.random.default_rng(seed)
        lengths = chance.integers(0, most, num_rows)
        lengths[[0, -1, num_rows // 2, num_rows // 2 + 1]] = 0
        self.splits = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self.ids = chance.integers(0, ROWS, self.splits[-1])
        self.cells = np.repeat(np.arange(num_rows), lengths)
        self.lengths = lengths

    def gains(self, combiner: str) -> Array:
        """Returns the gain of each row, as numpy rounds it; empty for sums."""
        if combiner == "sum":
            return np.zeros([0], np.float32)
        sums = self.lengths.astype(np.float32)
        sums = np.sqrt(sums) if combiner == "sqrtn" else sums
        ones = np.ones_like(sums)
        return np.divide(ones, sums, out=np.zeros_like(sums), where=sums > 0)

    def as_splits(self, combiner: str) -> dict[str, Any]:
        """Returns the arguments of an op with row splits, as the reading op makes them."""
        ids, cells, gains, num_cells = occurrences(
            index=[self.splits],
            ids=[self.ids],
            num_samples=[tf.constant(len(self.lengths), tf.int64)],
            combiners=[combiner],
            weighted=[False],
            sizes=[[len(self.lengths)]],
            rows=[ROWS],
        )
        assert cells[0].shape == [1, len(self.splits)]
        np.testing.assert_array_equal(gains[0], self.gains(combiner))
        return {"ids": ids, "cells": cells, "gains": gains, "num_cells": num_cells}

    def as_cells(self, combiner: str) -> dict[str, Any]:
        """Returns the arguments with a cell and a gain for each id."""
        gains = self.gains(combiner)
        return {
            "ids": [self.ids],
            "cells": [self.cells],
            "gains": [gains[self.cells] if len(gains) else gains],
            "num_cells": [tf.constant(len(self.lengths), tf.int64)],
        }


def variables_of(table: Array, num_shards: int) -> list[tf.Variable]:
    """Returns the shards of a table, one row after another."""
    return [tf.Variable(table[number::num_shards]) for number in range(num_shards)]


def lookup(table: Array, num_shards: int, arguments: dict[str, Any]) -> Array:
    shards = variables_of(table, num_shards)
    (activations,) = loading.load().ops.tf2_engine_lookup(
        parameters=[shard.handle for shard in shards],
        num_shards=num_shards,
        strategy="mod",
        rows=[ROWS],
        dims=[table.shape[1]],
        table_of=[0],
        sizes=[[None]],
        where=["Feature 'ids'"],
        **arguments,
    )
    return activations.numpy()


def summed(table: Array, batch: Batch, combiner: str) -> Array:
    """Returns the sums of gain times row, each rounded, one after the other from zero."""
    sums = np.zeros([len(batch.lengths), table.shape[1]], np.float32)
    gains = batch.gains(combiner)
    for cell, row in zip(batch.cells, batch.ids, strict=True):
        sums[cell] += gains[cell] * table[row] if len(gains) else table[row]
    return sums


@pytest.mark.parametrize("width", WIDTHS)
def test_lookups_sum_in_the_order_of_the_ids(width: int) -> None:
    """Every width, combiner and number of shards gives the documented sums, to the bit."""
    table = np.random.default_rng(width).normal(size=(ROWS, width)).astype(np.float32)
    batch = Batch(width, 40, 12)
    for combiner in COMBINERS:
        expected = summed(table, batch, combiner)
        assert np.any(expected != 0)
        for num_shards in (1, 3):
            where = f"{combiner}, {num_shards} shards"
            for arguments in (batch.as_splits(combiner), batch.as_cells(combiner)):
                actual = lookup(table, num_shards, arguments)
                np.testing.assert_array_equal(actual, expected, where)


def test_many_ids_are_looked_up_in_parts() -> None:
    """Ids of several tasks, on any number of threads, are summed as those of one."""
    table = np.random.default_rng(0).normal(size=(ROWS, 16)).astype(np.float32)
    batch = Batch(0, 3000, 40)
    assert len(batch.ids) > 4 * 8192  # a task of the op has at least 8192

    np.testing.assert_array_equal(
        lookup(table, 1, batch.as_splits("mean")), summed(table, batch, "mean")
    )


def test_cells_beyond_the_rows_are_zero() -> None:
    """Splits of fewer rows than cells leave the other cells without ids."""
    table = np.ones([ROWS, 16], np.float32)
    batch = Batch(0, 20, 5)
    more = {**batch.as_splits("sum"), "num_cells": [tf.constant(23, tf.int64)]}
    activations = lookup(table, 1, more)

    np.testing.assert_array_equal(activations[:, 3], [*batch.lengths, 0, 0, 0])


def update(width: int, pieces: list[dict[str, Any]], gradients: list[Array]) -> list[Array]:
    """Returns parameters and slot after a step with several pieces of one table."""
    spec = EngineSpec(
        (TableSpec("table", ROWS, width, "sum", Adagrad(0.1)),), (FeatureSpec("ids", "table"),)
    )
    optimizer = optimizer_proto(make_plan(spec, [(3,)]).tables[0]).SerializeToString()
    held = [tf.Variable(tf.ones([ROWS, width])) for _ in range(2)]
    loading.load().ops.tf2_engine_update(
        variables=[one.handle for one in held],
        **{
            name: [each for piece in pieces for each in piece[name]]
            for name in ("ids", "cells", "gains")
        },
        gradients=gradients,
        rates=[tf.constant(0.5)],
        num_shards=1,
        num_cores=1,
        strategy="div",
        rows=[ROWS],
        dims=[width],
        optimizers=[optimizer],
        table_of=[0] * len(pieces),
        core_of=[0] * len(pieces),
        where=["Feature 'ids'"] * len(pieces),
    )
    return [one.numpy() for one in held]


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("width", [5, 64])
def test_updates_are_those_of_cells(width: int, combiner: str) -> None:
    """Two features of a table train it alike with splits, with cells, and with one of each."""
    chance = np.random.default_rng(width)
    batches = [Batch(1, 30, 9), Batch(2, 25, 7)]
    gradients = [
        chance.normal(size=(len(batch.lengths), width)).astype(np.float32) for batch in batches
    ]
    splits = [batch.as_splits(combiner) for batch in batches]
    cells = [batch.as_cells(combiner) for batch in batches]
    expected = update(width, cells, gradients)
    assert np.any(expected[0] != 1)

    for pieces in (splits, [splits[0], cells[1]], [cells[0], splits[1]]):
        for actual, values in zip(update(width, pieces, gradients), expected, strict=True):
            np.testing.assert_array_equal(actual, values)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_dropped_ids_leave_the_rows_that_they_were_in(combiner: str) -> None:
    """Where ids are dropped the splits and gains are those of what is kept."""
    arguments: dict[str, Any] = {
        "index": [[0, 2, 2, 4, 5]],
        "num_samples": [tf.constant(4, tf.int64)],
        "sizes": [[4]],
        "weighted": [False],
        "combiners": [combiner],
        "rows": [ROWS],
        "drop": True,
    }
    kept = occurrences(ids=[[1, 6, 0, 6, 2]], **arguments)
    assert kept[1][0].numpy().tolist() == [[0, 2, 2, 4, 5]]
    ids, cells, gains, _ = occurrences(ids=[[1, -6, ROWS, 3, 2**62]], **arguments)

    assert ids[0].numpy().tolist() == [1, 3]
    assert cells[0].numpy().tolist() == [[0, 1, 1, 2, 2]]
    assert gains[0].numpy().tolist() == ([] if combiner == "sum" else [1, 0, 1, 0])
