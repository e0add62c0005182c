"""Loops over packed batches under MirroredStrategy, beside the same over nests.

python -m compat_tests.programs.packed_loops RESULTS.npz
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow as tf

import tf2_engine
from tf2_engine import errors
from tf2_engine.keras import TPUEmbedding

ROWS, DIM, SAMPLES, STEPS = 20, 4, 4, 5
START = np.random.default_rng(0).normal(size=(ROWS, DIM)).astype(np.float32) / 4
EMB = tf.tpu.experimental.embedding


def main() -> None:
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    results: dict[str, Any] = {"start": START}
    for packs in (True, False):
        of = "packed" if packs else "nests"
        results[f"outside/{of}"] = by_engine(packs, inside=False)
        results[f"inside/{of}"] = by_engine(packs, inside=True)
        results[f"fit/{of}"] = by_fit(packs)
        results[f"rest/{of}"] = of_an_odd_number(packs)
    results["split"] = split_batch()
    np.savez(sys.argv[1], **results)


def config() -> Any:
    """Returns a table, and the config of a ragged and of a dense feature."""
    table = EMB.TableConfig(
        ROWS, DIM, initializer=tf.constant_initializer(START), combiner="mean", name="t"
    )
    return table, {"a": EMB.FeatureConfig(table, name="a"), "b": EMB.FeatureConfig(table, name="b")}


def batches(context: Any = None, samples: int = SAMPLES) -> tf.data.Dataset:
    """Returns batches of a replica, another one for each step."""

    def make(step: Any) -> Any:
        seed = tf.stack([step, 7])
        ids = tf.random.stateless_uniform([2 * samples], seed, 0, ROWS, tf.int64)
        splits = tf.concat([tf.range(0, 2 * samples, 2), [2 * samples - 1]], 0)
        watched = tf.RaggedTensor.from_row_splits(ids[: 2 * samples - 1], splits)
        return {"a": watched, "b": ids[:samples]}

    return tf.data.Dataset.range(100).map(make)


def strategy_of_two() -> Any:
    return tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])


def by_engine(packs: bool, inside: bool) -> Any:
    """Returns the table after steps that enqueue outside or inside of `strategy.run`."""
    strategy = strategy_of_two()
    with strategy.scope():
        table, feature_config = config()
        engine = tf2_engine.TPUEmbedding(feature_config, tf2_engine.Adagrad(0.1))

    def dataset(context: Any) -> Any:
        return batches().map(engine.pack) if packs else batches()

    def replica(batch: Any) -> None:
        if inside:
            engine.enqueue(batch)
        activations = engine.dequeue()
        engine.apply_gradients({name: 2 * value for name, value in activations.items()})

    @tf.function
    def step(batch: Any) -> None:
        if not inside:
            engine.enqueue(batch)
        strategy.run(replica, args=(batch,))

    iterator = iter(strategy.distribute_datasets_from_function(dataset))
    for _ in range(STEPS):
        step(next(iterator))
    return engine.embedding_tables[table].numpy()


class Model(tf.keras.Model):  # type: ignore[misc]
    """A layer of tables, and the sum of its activations."""

    def __init__(self) -> None:
        super().__init__()
        self.table, feature_config = config()
        self.tables = TPUEmbedding(feature_config, tf2_engine.Adagrad(0.1))

    def call(self, features: Any) -> Any:
        return tf.add_n(list(self.tables(features).values()))


def by_fit(packs: bool) -> Any:
    """Returns the table after `fit` of packed batches, or after a loop over others.

    Keras 3's `fit` takes no sparse or ragged tensors of replicas. The loop's gradients have the
    same bits: sizes are powers of two, so it does not matter when means are divided by them.
    """
    strategy = strategy_of_two()
    with strategy.scope():
        model = Model()
        model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss="mse")

    def dataset(context: Any) -> Any:
        def example(features: Any) -> Any:
            return (model.tables.pack(features) if packs else features), tf.ones([SAMPLES, DIM])

        return batches().map(example)

    def replica(features: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(features) - labels)) / 2
        tape.gradient(loss, model.trainable_variables)

    distributed = strategy.distribute_datasets_from_function(dataset)
    if packs:
        model.fit(distributed, steps_per_epoch=STEPS, verbose=0)
    else:
        step = tf.function(lambda batch: strategy.run(replica, args=batch))
        iterator = iter(distributed)
        for _ in range(STEPS):
            step(next(iterator))
    return model.tables.embedding_tables[model.table].numpy()


def of_an_odd_number(packs: bool) -> Any:
    """Returns activations of three batches for two replicas, one of which has none at the end."""
    strategy = strategy_of_two()
    with strategy.scope():
        engine = tf2_engine.TPUEmbedding(config()[1], tf2_engine.Adagrad(0.1))

    def replica(batch: Any) -> Any:
        return engine.differentiable_lookup(batch, training=False)[0]

    @tf.function
    def look_up(iterator: Any) -> Any:
        batch = iterator.get_next_as_optional().get_value()
        return strategy.run(replica, args=(batch,))

    def dataset(context: Any) -> Any:
        return (batches().map(engine.pack) if packs else batches()).take(3)

    iterator = iter(strategy.distribute_datasets_from_function(dataset))
    activations = [look_up(iterator) for _ in range(2)]
    local = [strategy.experimental_local_results(each["a"]) for each in activations]
    assert local[1][1].shape[0] == 0
    return np.concatenate([value.numpy() for values in local for value in values])


def split_batch() -> str:
    """Returns the error for a packed batch that the strategy splits over its replicas."""
    strategy = strategy_of_two()
    with strategy.scope():
        engine = tf2_engine.TPUEmbedding(config()[1], tf2_engine.Adagrad(0.1))
    dataset = batches(samples=2 * SAMPLES).map(engine.pack)
    batch = next(iter(strategy.experimental_distribute_dataset(dataset)))
    try:
        engine.enqueue(batch)
    except errors.InvalidInput as error:
        return str(error)
    return "not refused"


if __name__ == "__main__":
    main()
