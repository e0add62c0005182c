"""The training, evaluation and per-core loops of TPUEmbedding's documentation, as written there."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import tf2_engine

ROWS = 20
GLOBAL_BATCH = 8
STRATEGIES = {
    "default": tf.distribute.get_strategy,
    "one_device": lambda: tf.distribute.OneDeviceStrategy("/cpu:0"),
    "mirrored": lambda: tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]),
}


def run_all() -> dict[str, np.ndarray]:
    """Returns the results of every loop under every strategy."""
    results: dict[str, np.ndarray] = {}
    for name, make in STRATEGIES.items():
        for key, value in run(make()).items():
            results[f"{name}/{key}"] = np.asarray(value)
    return results


def run(strategy: tf.distribute.Strategy) -> dict[str, Any]:
    emb = tf.tpu.experimental.embedding
    start = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32) / 4
    with strategy.scope():
        table = emb.TableConfig(
            ROWS, 4, initializer=tf.constant_initializer(start), combiner="mean", name="t"
        )
        feature_config = {
            "a": emb.FeatureConfig(table, name="a"),
            "b": emb.FeatureConfig(table, name="b"),
        }
        embedding = tf2_engine.TPUEmbedding(
            feature_config=feature_config, optimizer=tf2_engine.Adagrad(0.1)
        )
    distributed_dataset = strategy.distribute_datasets_from_function(
        dataset_fn=batches,
        options=tf.distribute.InputOptions(experimental_fetch_to_device=False),
    )
    dataset_iterator = iter(distributed_dataset)

    @tf.function
    def training_step(dataset_iterator: Any, num_steps: int) -> None:
        def tpu_step(tpu_features: Any) -> None:
            with tf.GradientTape() as tape:
                activations = embedding.dequeue()
                tape.watch(activations)
                difference = activations["a"] - activations["b"] * tpu_features[:, None]
                loss = tf.reduce_sum(difference**2) / GLOBAL_BATCH
            embedding_gradients = tape.gradient(loss, activations)
            embedding.apply_gradients(embedding_gradients)

        for _ in tf.range(num_steps):
            embedding_features, tpu_features = next(dataset_iterator)
            embedding.enqueue(embedding_features, training=True)
            strategy.run(tpu_step, args=(tpu_features,))

    @tf.function
    def evaluation_step(dataset_iterator: Any) -> Any:
        embedding_features, _ = next(dataset_iterator)
        embedding.enqueue(embedding_features, training=False)
        return strategy.run(embedding.dequeue)

    @tf.function
    def enqueue_inside(dataset_iterator: Any) -> Any:
        def step(inputs: Any) -> Any:
            embedding.enqueue(inputs[0], training=tf.constant(False))
            return embedding.dequeue()

        return strategy.run(step, args=(next(dataset_iterator),))

    results: dict[str, Any] = {"start": start}
    training_step(dataset_iterator, tf.constant(10))
    results["table"] = embedding.embedding_tables[table].numpy()
    results["evaluation"] = _global_batch(strategy, evaluation_step(dataset_iterator))
    results["enqueue_inside"] = _global_batch(strategy, enqueue_inside(dataset_iterator))
    per_core = _per_core(strategy, embedding, next(dataset_iterator))
    results["per_core"] = _global_batch(strategy, per_core)
    if strategy.num_replicas_in_sync > 1:
        results["control_flow"] = _in_control_flow(strategy, embedding, next(dataset_iterator))
    return results


def _global_batch(strategy: Any, result: Any) -> np.ndarray:
    """Returns both features' activations of the global batch."""
    parts = [
        part.numpy()
        for _, each in sorted(result.items())
        for part in strategy.experimental_local_results(each)
    ]
    return np.concatenate(parts)


def batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Returns global batches that are the same for any number of replicas."""
    size = context.get_per_replica_batch_size(GLOBAL_BATCH)
    places = [(sample, place) for sample in range(size) for place in range(2)]

    def make(step: Any) -> Any:
        def integers(offset: int, shape: list[int]) -> Any:
            seed = tf.stack([step, tf.constant(offset, tf.int64)])
            return tf.random.stateless_uniform(shape, seed, 0, ROWS, tf.int64)

        return integers(7, [GLOBAL_BATCH, 2]), integers(8, [GLOBAL_BATCH])

    def as_features(pairs: Any, single: Any) -> Any:
        sparse = tf.SparseTensor(places, tf.reshape(pairs, [-1]), [size, 2])
        return {"a": sparse, "b": single}, tf.cast(single % 3, tf.float32)

    dataset = tf.data.Dataset.range(1000).map(make).unbatch()
    return dataset.batch(size, drop_remainder=True).map(as_features)


def _per_core(strategy: Any, embedding: Any, batch: Any) -> Any:
    """Enqueues each core's part for its device, as the documentation's per_core_enqueue does."""
    per_core_features = {
        name: strategy.experimental_local_results(value) for name, value in batch[0].items()
    }
    devices = ["/cpu:0"]
    if strategy.num_replicas_in_sync > 1:
        devices = list(strategy.extended.worker_devices)
    for core_id, device in enumerate(devices):
        part = {name: values[core_id] for name, values in per_core_features.items()}
        embedding.enqueue(part, training=False, device=device)
    return tf.function(lambda: strategy.run(embedding.dequeue))()


def _in_control_flow(strategy: Any, embedding: Any, batch: Any) -> str:
    def step(inputs: Any) -> None:
        features, labels = inputs
        tf.cond(
            tf.reduce_sum(labels) > -1.0,
            lambda: _enqueued(embedding, features),
            lambda: tf.constant(0),
        )

    try:
        tf.function(lambda: strategy.run(step, args=(batch,)))()
    except RuntimeError as error:
        return str(error)
    return "not refused"


def _enqueued(embedding: Any, features: Any) -> Any:
    embedding.enqueue(features)
    return tf.constant(0)
