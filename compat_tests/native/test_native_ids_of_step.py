"""Ids of a batch that is looked up in the same step: the ops that read rows check them.

Nothing may be written then, though gradients do not depend on what was looked up, and though the
tables of other features are updated by other ops.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf2_engine import SGD, Adam, EngineSpec, FeatureSpec, TableSpec, TPUEmbedding
from tf2_engine.backends import HostDriver

ROWS, DIM, SAMPLES = 40, 16, 3
FEATURES = ("first", "second")
BAD = {"beyond": ROWS, "below zero": -1, "far": 1 << 40}
FORMS: dict[str, Callable[[list[int]], Any]] = {
    "dense": lambda ids: tf.constant(ids, tf.int64),
    "ragged": lambda ids: tf.RaggedTensor.from_row_lengths(tf.constant(ids, tf.int64), [1, 0, 2]),
    "sparse": lambda ids: tf.SparseTensor(
        [[0, 0], [2, 0], [2, 1]], tf.constant(ids, tf.int64), [SAMPLES, 2]
    ),
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """How the tables are: their combiner, shards, and whether one is on TensorFlow's ops."""

    combiner: str = "sum"
    num_hosts: int = 1
    splits: bool = False


SETTINGS = {
    "plain": Setting(),
    "mean": Setting("mean"),
    "shards": Setting(num_hosts=3),
    "split": Setting(splits=True),
}


def engine(setting: Setting) -> TPUEmbedding:
    """Returns an engine of a table for each feature, which has been built."""
    every_row = Adam(0.5, lazy_adam=False)  # which native ops do not have
    optimizers = [SGD(0.5), every_row if setting.splits else SGD(0.5)]
    initializer = tf.random_uniform_initializer(-1.0, 1.0)
    spec = EngineSpec(
        tuple(
            TableSpec(f"{name}s", ROWS, DIM, setting.combiner, optimizer, initializer)
            for name, optimizer in zip(FEATURES, optimizers, strict=True)
        ),
        tuple(FeatureSpec(name, f"{name}s") for name in FEATURES),
    )
    driver = HostDriver(native=None if setting.splits else True)
    hosts = setting.num_hosts
    embedding = TPUEmbedding(spec, num_cores=hosts, num_hosts=hosts, driver=driver)
    embedding.build_for([(SAMPLES,)] * len(FEATURES))
    return embedding


def batch(setting: Setting, form: str, bad: str, feature: str) -> Any:
    """Returns a batch with one bad id, in the last place of a feature's ids, of the last core."""

    def of_core(core: int) -> dict[str, Any]:
        is_last = core == setting.num_hosts - 1
        ids = {name: [3, 5, 7] for name in FEATURES}
        ids[feature] = [3, 5, BAD[bad] if is_last else 7]
        return {name: FORMS[form](of_feature) for name, of_feature in ids.items()}

    cores = [of_core(core) for core in range(setting.num_hosts)]
    return cores if setting.num_hosts > 1 else cores[0]


def gradients(setting: Setting) -> Any:
    of_core = {name: tf.ones([SAMPLES, DIM]) for name in FEATURES}
    return [of_core] * setting.num_hosts if setting.num_hosts > 1 else of_core


def values_of(embedding: TPUEmbedding) -> list[Any]:
    """Returns the shards of the parameters of all tables."""
    tables = embedding.tables.values()
    return [shard for table in tables for shard in table.variables["parameters"]]


def in_a_graph(setting: Setting, form: str, bad: str, feature: str) -> tuple[list[Any], list[Any]]:
    """Runs a step in a session; returns the tables before and after."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        embedding = engine(setting)
        embedding.enqueue(batch(setting, form, bad, feature))
        embedding.dequeue()
        update = embedding.apply_gradients(gradients(setting))
        session.run(tf.compat.v1.global_variables_initializer())
        before = session.run(values_of(embedding))
        with pytest.raises(tf.errors.InvalidArgumentError, match=message(bad, feature)):
            session.run(update)
        return before, session.run(values_of(embedding))


def in_a_function(
    setting: Setting, form: str, bad: str, feature: str
) -> tuple[list[Any], list[Any]]:
    """Runs a step as a Keras layer does; returns the tables before and after."""
    embedding = engine(setting)

    @tf.function(autograph=False)
    def step(features: Any) -> None:
        _, train = embedding.differentiable_lookup(features)
        train(gradients(setting))

    before = [value.numpy() for value in values_of(embedding)]
    with pytest.raises(tf.errors.InvalidArgumentError, match=message(bad, feature)):
        step(batch(setting, form, bad, feature))
    return before, [value.numpy() for value in values_of(embedding)]


def message(bad: str, feature: str) -> str:
    """Returns a pattern for the error, which names feature, table, id and the setting to change."""
    way_out = f"rows 0 to {ROWS - 1}.*out_of_range_ids=.{{1,2}}drop"
    return f"(?s)Feature .?'{feature}.*table .?'{feature}s.*{way_out}.*{BAD[bad]}"


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("step", [in_a_graph, in_a_function])
def test_a_bad_id_changes_nothing(step: Any, setting: str, form: str, feature: str) -> None:
    """The step fails and names the feature; neither table has another value than before."""
    for bad in BAD:
        before, after = step(SETTINGS[setting], form, bad, feature)
        for one, other in zip(before, after, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("setting", ["plain", "mean", "shards"])
def test_dense_ids_of_a_known_number_are_read_by_no_other_op(setting: str) -> None:
    """Lookups and updates take them as they are; they do the same as where the run must count."""
    known, kinds = trained(SETTINGS[setting], [SAMPLES])
    open_size, other_kinds = trained(SETTINGS[setting], [None])

    assert "Tf2EngineOccurrences" in other_kinds - kinds
    for one, other in zip(known, open_size, strict=True):
        np.testing.assert_array_equal(one, other)  # the same kernels, on the same ids


def trained(setting: Setting, shape: list[int | None]) -> tuple[list[Any], set[str]]:
    """Makes a step on ids of this static shape.

    Returns the activations and the tables after it, and the types of the ops.
    """
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        embedding = engine(setting)
        ids = tf.compat.v1.placeholder_with_default(tf.constant([3, 5, 3], tf.int64), shape)
        of_core = dict.fromkeys(FEATURES, ids)
        several = setting.num_hosts > 1
        embedding.enqueue([of_core] * setting.num_hosts if several else of_core)
        activations = tf.nest.flatten(embedding.dequeue())
        update = embedding.apply_gradients(gradients(setting))
        start = [value.assign(number_rows(value)) for value in values_of(embedding)]
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(start)
        looked_up, _ = session.run([activations, update])
        kinds = {op.type for op in graph.get_operations()}
        return [*looked_up, *session.run(values_of(embedding))], kinds


def number_rows(value: Any) -> Any:
    """Returns values for a shard that differ from row to row."""
    size = value.shape.num_elements()
    return tf.reshape(tf.range(size, dtype=tf.float32), value.shape) / size
