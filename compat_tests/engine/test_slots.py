"""Slots created by a user's function, which sees the whole table as one variable."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf2_engine
from compat_tests.support import fake_tpu
from tf2_engine import errors, tf_compat

CONFIG = tf.tpu.experimental.embedding
ROWS, DIM, BATCH = 10, 4, 6
IDS = tf.constant([0, 3, 3, 9, 6, 1])


def keras() -> Any:
    return tf.keras.optimizers.legacy.Adagrad()


def by_keras(optimizer: Any) -> Any:
    """Returns a function that lets a Keras optimizer make the slots."""

    def make(table: Any, names: list[str], initializers: list[Any]) -> dict[str, Any]:
        return {
            name: optimizer.add_slot(table, name, initializer)
            for name, initializer in zip(names, initializers, strict=True)
        }

    return make


def feature_config(optimizer: Any) -> Any:
    start = tf.constant_initializer(np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM))
    table = CONFIG.TableConfig(
        ROWS,
        DIM,
        name="videos",
        combiner="sum",
        optimizer=optimizer,
        initializer=lambda shape, dtype: start([ROWS, DIM], dtype)[: shape[0]],
    )
    return CONFIG.FeatureConfig(table, name="watched")


def engine_of(kind: Any, hosts: int = 1, *, slots: Any = None) -> Any:
    """Returns an engine with a core per host; a function may make its slots."""
    optimizer = kind(0.1) if slots is None else kind(0.1, slot_variable_creation_fn=slots)
    config = feature_config(optimizer)
    return tf2_engine.TPUEmbedding(config, num_hosts=hosts, num_cores=hosts)


def train(engine: Any) -> None:
    count = engine._cores.count
    for step in range(3):
        engine.enqueue([IDS] * count if count > 1 else IDS)
        engine.dequeue()
        gradients = [tf.fill([BATCH, DIM], float(step + 1 + core)) for core in range(count)]
        engine.apply_gradients(gradients if count > 1 else gradients[0])


@pytest.mark.parametrize("hosts", [1, 3])
@pytest.mark.parametrize("name", ["Adagrad", "Adam", "FTRL"])
def test_a_keras_optimizer_makes_the_slots(name: str, hosts: int) -> None:
    """Slots made by `add_slot` start with the same values, and train to the same numbers."""
    kind = getattr(CONFIG, name)
    keras_optimizer = keras()
    theirs = engine_of(kind, hosts, slots=by_keras(keras_optimizer))
    ours = engine_of(kind, hosts)

    train(theirs)
    train(ours)

    slots = tf2_engine.OPTIMIZERS[name].slot_names
    for variable in ("parameters", *slots):
        for expected, got in zip(
            ours.tables["videos"].variables[variable],
            theirs.tables["videos"].variables[variable],
            strict=True,
        ):
            np.testing.assert_array_equal(got, expected)
    (table,) = theirs.embedding_tables.values()
    for slot in slots:
        if hosts == 1:
            keras_shards = [keras_optimizer.get_slot(table, slot)]
        else:
            keras_shards = keras_optimizer.weights[slots.index(slot)].variables
        shards = theirs.tables["videos"].variables[slot]
        assert [*map(id, keras_shards)] == [*map(id, shards)]


def test_the_slots_are_on_the_hosts_of_a_tpu() -> None:
    """Under a TPUStrategy what the function makes is spread over hosts like the table."""
    created: dict[str, Any] = {}

    def function(table: Any, names: list[str], initializers: list[Any]) -> dict[str, Any]:
        assert isinstance(table, tf_compat.ShardedTable)
        created.update(by_keras(keras())(table, names, initializers))
        return created

    with tf.Graph().as_default(), fake_tpu.recorded():
        strategy = fake_tpu.strategy(2, 1)
        with strategy.scope():
            engine = tf2_engine.TPUEmbedding(
                feature_config(CONFIG.Adagrad(0.1, slot_variable_creation_fn=function))
            )
            engine.build([BATCH, 1])
        shards = engine.tables["videos"].variables["accumulators"]
        assert [shard.device for shard in shards] == [
            f"/job:worker/replica:0/task:{task}/device:CPU:0" for task in range(2)
        ]
        assert list(created["accumulators"].variables) == list(shards)


@pytest.mark.parametrize(
    "function, message",
    [
        (lambda *_: {}, "must return a dict with the slots ['accumulators'], but returned []"),
        (lambda *_: None, "but returned None"),
        (
            lambda *_: {"accumulators": tf.Variable(tf.zeros([ROWS + 1, DIM]))},
            "[10, 4], but the initial value of 'slot' has the shape (11, 4)",
        ),
        (
            lambda *_: {"accumulators": tf.zeros([ROWS, DIM])},
            "must create the variables that it returns",
        ),
    ],
)
def test_a_function_that_makes_other_things_is_refused(function: Any, message: str) -> None:
    engine = engine_of(CONFIG.Adagrad, slots=function)

    with pytest.raises(errors.InvalidSpec, match="Table 'videos'.*" + re.escape(message)):
        engine.build([BATCH, 1])
    assert "not built" in repr(engine)


def test_the_shards_are_one_variable() -> None:
    """`embedding_tables` of several hosts has the shape of one table, and converts to it."""
    engine = engine_of(CONFIG.SGD, 3)
    train(engine)
    shards = engine.tables["videos"].variables["parameters"]

    (table,) = engine.embedding_tables.values()

    assert table.shape == [ROWS, DIM]
    whole = np.concatenate([shard.numpy() for shard in shards])
    np.testing.assert_array_equal(tf.convert_to_tensor(table), whole)


# Lookups at once.


@pytest.mark.parametrize("pipelining", [False, True])
@pytest.mark.parametrize("hosts", [1, 2])
def test_a_lookup_at_once_sees_every_update(hosts: int, pipelining: bool) -> None:
    """`embedding_lookup` gives what a batch for inference gives, and leaves no batch behind."""
    engine = tf2_engine.TPUEmbedding(
        feature_config(CONFIG.Adagrad(0.1)),
        None,
        pipelining,
        num_hosts=hosts,
        num_cores=hosts,
    )
    train(engine)

    at_once = engine.embedding_lookup(IDS)
    called = engine(IDS)
    parts = [IDS] * hosts if hosts > 1 else IDS
    engine.enqueue(parts, training=False)
    dequeued = engine.dequeue()

    np.testing.assert_array_equal(at_once, dequeued[0] if hosts > 1 else dequeued)
    np.testing.assert_array_equal(called, at_once)
    with pytest.raises(errors.OutOfOrder, match="no batch is enqueued"):
        engine.dequeue()


def test_a_lookup_at_once_needs_tables() -> None:
    """`embedding_lookup` is refused before a build, and where a TPU holds the tables."""
    with pytest.raises(RuntimeError, match="`embedding_lookup` is called on an engine that is not"):
        engine_of(CONFIG.SGD).embedding_lookup(IDS)
    strategy = fake_tpu.strategy(1, 1, job="localhost")
    with strategy.scope(), fake_tpu.recorded():
        engine = tf2_engine.TPUEmbedding(feature_config(CONFIG.SGD(0.1)))
        engine.build([BATCH, 1])
    with pytest.raises(RuntimeError, match="`embedding_lookup` cannot read the tables under a TPU"):
        engine.embedding_lookup(IDS)
