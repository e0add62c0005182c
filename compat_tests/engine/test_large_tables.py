"""Ids are int64 everywhere: vocabularies and tables larger than 2^31."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import tensorflow as tf

from compat_tests.references.placement import owner_core
from tf2_engine import SGD, EngineSpec, FeatureSpec, TableSpec
from tf2_engine.batch import occurrences, read_ids
from tf2_engine.plan import Plan, make_plan
from tf2_engine.tables import PARAMETERS, Table

ROWS = 2**40 + 7
"""More rows than an int32 can count or memory can hold: no variable is made for them."""
FAR = [0, 2**31 - 1, 2**31, 2**32 + 5, ROWS - 1]


def plan_of(rows: int, hosts: int = 1, strategy: str = "div", **more: Any) -> Plan:
    spec = EngineSpec(
        (TableSpec("table", rows, 1, "sum", SGD(1.0)),),
        (FeatureSpec("ids", "table", **more),),
        partition_strategy=strategy,
    )
    return make_plan(spec, [(len(FAR),)], num_hosts=hosts, num_cores=hosts)


def batches(ids: Sequence[int]) -> dict[str, Any]:
    """Returns the ids as every kind of input."""
    values = tf.constant(ids, tf.int64)
    splits = tf.range(len(ids) + 1, dtype=tf.int64)
    places = tf.stack([splits[:-1], tf.zeros_like(splits[:-1])], 1)
    return {
        "dense": values,
        "sparse": tf.SparseTensor(places, values, [len(ids), 1]),
        "ragged": tf.RaggedTensor.from_row_splits(values, splits),
    }


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
@pytest.mark.parametrize("out_of_range", ["error", "drop"])
@pytest.mark.parametrize("kind", ["dense", "sparse", "ragged"])
def test_ids_beyond_int32_are_kept(kind: str, out_of_range: str, in_function: bool) -> None:
    """Every kind of input gives its ids back as they are, int64; checks compare them as such."""
    (feature,) = plan_of(ROWS).features

    def read(value: Any) -> Any:
        return occurrences(feature, read_ids(feature, value, None), out_of_range).ids

    read = tf.function(read) if in_function else read
    ids = read(batches(FAR)[kind])
    assert ids.dtype == tf.int64
    assert ids.numpy().tolist() == FAR

    # Cast to int32, these are 0 or another row of the table.
    beyond = [*FAR[:3], ROWS, 2**62]
    if out_of_range == "drop":
        assert read(batches(beyond)[kind]).numpy().tolist() == FAR[:3]
        return
    with pytest.raises(tf.errors.InvalidArgumentError, match=str(2**62)):
        read(batches(beyond)[kind])


@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize("hosts", [1, 3])
def test_rows_beyond_int32_have_their_host(hosts: int, strategy: str) -> None:
    """The owner of each row, with two cores a host, is the one that the reference names."""
    plan = plan_of(ROWS, hosts, strategy)
    table = Table(plan.tables[0], strategy, {PARAMETERS: (None,) * hosts})  # type: ignore[dict-item]
    cores = 2 * hosts

    owner = table.core_of(tf.constant(FAR, tf.int64), cores)
    expected = [owner_core(id_, ROWS, cores, 2, strategy) for id_ in FAR]
    assert owner.numpy().tolist() == expected


@pytest.mark.full
def test_a_table_of_more_elements_than_int32_counts(tmp_path: pathlib.Path) -> None:
    """A table of 2^31 + 24 elements is trained, saved and restored, its last rows as its first.

    Each part has a process of its own; takes 18 GB of memory and 9 GB of disk.
    """
    path = tmp_path / "large"
    try:
        for part in ("save", "restore"):
            ended = subprocess.run(
                [sys.executable, "-m", "compat_tests.programs.large_table", part, str(path)],
                capture_output=True,
                text=True,
                check=False,
            )
            assert ended.returncode == 0, ended.stderr[-3000:]
            sys.stdout.write(ended.stdout)
    finally:
        for file in tmp_path.glob("large*"):
            file.unlink()
