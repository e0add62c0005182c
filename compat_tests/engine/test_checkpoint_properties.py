"""A checkpoint has the tables in order of ids, whatever writes and reads it."""

from __future__ import annotations

import pathlib
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tf2_engine
from compat_tests.cases.optimizers import CASES
from compat_tests.support import engine_checkpoints


def engine(
    rows: int, dim: int, optimizer: Any, placement: tuple[int, str], pipelining: bool = False
) -> Any:
    """Returns a built engine of one table, its parameters drawn anew."""
    hosts, strategy = placement
    table = tf2_engine.TableSpec(
        "table", rows, optimizer.only_dim or dim, "sum", optimizer, tf.random_uniform_initializer()
    )
    spec = tf2_engine.EngineSpec(
        (table,),
        (tf2_engine.FeatureSpec("ids", "table"),),
        partition_strategy=strategy,
        pipeline_execution_with_tensor_core=pipelining,
    )
    embedding = tf2_engine.TPUEmbedding(spec, num_hosts=hosts, num_cores=hosts)
    embedding.build_for([(4,)])
    return embedding


PLACEMENTS = st.tuples(st.integers(1, 5), st.sampled_from(["div", "mod"]))


@settings(derandomize=True, max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 9),
    dim=st.integers(1, 3),
    name=st.sampled_from(sorted(CASES)),
    written=PLACEMENTS,
    read=PLACEMENTS,
    ids=st.lists(st.integers(0, 8), min_size=4, max_size=4),
    pipelining=st.booleans(),
)
def test_restoring_what_was_saved_is_the_identity(
    rows: int,
    dim: int,
    name: str,
    written: tuple[int, str],
    read: tuple[int, str],
    ids: list[int],
    pipelining: bool,
) -> None:
    """A table saved after a step on any number of hosts is restored alike on any other."""
    case = CASES[name]
    optimizer = tf2_engine.OPTIMIZERS[case.kind](learning_rate=0.1, **case.settings)
    first = engine(rows, dim, optimizer, written, pipelining)
    parts = [{"ids": tf.constant([i % rows for i in ids], tf.int64)}] * written[0]
    first.enqueue(parts if len(parts) > 1 else parts[0])
    activations = first.dequeue()
    first.apply_gradients(tf.nest.map_structure(tf.ones_like, activations))
    second = engine(rows, dim, optimizer, read)

    with tempfile.TemporaryDirectory() as directory:
        path = tf.train.Checkpoint(embedding=first).save(str(pathlib.Path(directory) / "c"))
        tf.train.Checkpoint(embedding=second).restore(path).assert_existing_objects_matched()

    expected, restored = (engine_checkpoints.read(each)["table"] for each in (first, second))
    assert set(expected) == {"parameters", *optimizer.slot_names}
    for variable, values in expected.items():
        np.testing.assert_array_equal(restored[variable], values, err_msg=f"{name}, {variable}")
