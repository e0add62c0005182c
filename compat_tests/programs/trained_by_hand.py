"""A training in TensorFlow 2, written by hand and declared for `verify`: eager, with a tape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import estimator_bridge
import tf2_engine
from estimator_bridge.legacy import parameters, spec, table_config

BATCH, USERS, DIMENSION = 8, 30, 4


class Outputs(NamedTuple):
    """The outputs of the model for a batch."""

    loss: Any
    rating: Any


def model_fn(features: Any, labels: Any, weights: Any) -> Outputs:
    """Rates by a weighted sum of the user's activation."""
    rating = tf.linalg.matvec(features["user"], weights)
    return Outputs(tf.reduce_mean(tf.square(rating - labels)), rating)


def input_fn() -> tf.data.Dataset:
    """Returns an endless dataset of random users and their ratings."""
    random = np.random.RandomState(0)
    users = random.randint(USERS, size=[100 * BATCH]).astype(np.int64)
    ratings = random.normal(size=users.shape).astype(np.float32)

    def features(ids: Any, rating: Any) -> Any:
        where = tf.stack([tf.range(BATCH, dtype=tf.int64), tf.zeros([BATCH], tf.int64)], 1)
        return {"user": tf.SparseTensor(where, ids, [BATCH, 1])}, rating

    dataset = tf.data.Dataset.from_tensor_slices((users, ratings)).repeat()
    return dataset.batch(BATCH, drop_remainder=True).map(features)


@estimator_bridge.verifiable
class ByHand:
    """A training loop without an estimator."""

    def __init__(
        self, model_fn: Callable[..., Any], model_dir: str, embedding_config_spec: Any
    ) -> None:
        self.model_dir = model_dir
        self.step = tf.Variable(0, dtype=tf.int64)
        tables = embedding_config_spec.to_tf2(step=self.step)
        self.engine = tf2_engine.TPUEmbedding(tables.engine_spec, batch_size=BATCH)
        self.engine.build()
        self.variables = {"weights": tf.Variable(tf.ones([DIMENSION]))}
        self._model_fn = model_fn

    def restore(self, checkpoint: str) -> None:
        variables = tf.Module()
        variables.weights = self.variables["weights"]
        saved = tf.train.Checkpoint(
            embedding=self.engine, global_step=self.step, variables=variables
        )
        saved.restore(checkpoint).assert_existing_objects_matched()

    def train(
        self,
        input_fn: Callable[[], Any],
        steps: int | None = None,
        max_steps: int | None = None,
        callbacks: Sequence[Any] = (),
    ) -> None:
        """Trains for `steps` steps, or up to step `max_steps`."""
        end = int(self.step) + steps if steps is not None else max_steps
        assert end is not None
        for callback in callbacks:
            callback.on_train_begin()
        for features, labels in input_fn().take(end - int(self.step)):
            weights = self.variables["weights"]
            self.engine.enqueue({"user": features["user"]})
            activations = self.engine.dequeue()
            with tf.GradientTape() as tape:
                tape.watch(activations)
                loss = self._model_fn(dict(activations), labels, weights).loss
            of_tables, of_weights = tape.gradient(loss, (activations, weights))
            self.engine.apply_gradients(of_tables)
            weights.assign_sub(0.1 * of_weights)
            self.step.assign_add(1)
            for callback in callbacks:
                callback.on_train_batch_end(int(self.step))

    def evaluate(self, input_fn: Callable[[], Any], steps: int | None = None) -> dict[str, float]:
        losses = [each.loss.numpy() for each in self._outputs(input_fn().take(steps or 1))]
        return {"loss": float(np.mean(losses))}

    def predict(self, input_fn: Callable[[], Any]) -> Iterator[dict[str, Any]]:
        """Yields the rating of each sample of a batch."""
        for outputs in self._outputs(input_fn().take(1)):
            yield from ({"rating": rating} for rating in outputs.rating.numpy())

    def _outputs(self, batches: Any) -> Iterator[Outputs]:
        for features, labels in batches:
            activations = self.engine.embedding_lookup({"user": features["user"]})
            yield self._model_fn(dict(activations), labels, self.variables["weights"])


def main(model_dir: str) -> None:
    """Trains, evaluates and predicts."""
    table = table_config.TableConfig(
        USERS, DIMENSION, tf.compat.v1.truncated_normal_initializer(seed=1), combiner="sum"
    )
    job = ByHand(
        model_fn,
        model_dir,
        spec.EmbeddingConfigSpec(
            feature_to_config_dict={"user": table_config.FeatureConfig("users")},
            table_to_config_dict={"users": table},
            optimization_parameters=parameters.AdagradParameters(0.1),
        ),
    )
    job.train(input_fn, steps=10)
    job.evaluate(input_fn, steps=2)
    list(job.predict(input_fn))


if __name__ == "__main__":
    import sys

    main(sys.argv[1])
