"""A Keras model trains the same on SparseCores as on a host with their arithmetic."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.conftest import Array
from tf2_engine import errors, preprocessing
from tf2_engine.keras import ColumnEmbedding, SequenceFeatures, TableModel, embedding_column
from tf2_engine.soft_tpu import SoftTPUStrategy

EMB = tf.tpu.experimental.embedding
BATCH, LENGTH = 8, 3

ROUNDING = 1e-6
"""Sums of at most 24 gradients of the order of 1 are in another order on two cores: 24 * 2^-24."""


def first_rows(shape: Any, dtype: Any = tf.float32) -> Any:
    rows, dim = shape
    return tf.reshape(tf.range(rows * dim, dtype=dtype), shape) / tf.cast(rows * dim, dtype)


class Clicks(TableModel):  # type: ignore[misc]
    """The sum of what is looked up for a user, and for films seen in a row, is a number."""

    def __init__(self, batch_size: int | None = BATCH) -> None:
        user = embedding_column(preprocessing.Identity("user", 10), 4, initializer=first_rows)
        seen = embedding_column(
            preprocessing.Sequence(preprocessing.Identity("seen", 12)),
            4,
            initializer=first_rows,
            max_sequence_length=LENGTH,
        )
        embedding = ColumnEmbedding(
            [user, seen], EMB.Adagrad(0.1), batch_size=batch_size, arithmetic="sparsecore"
        )
        super().__init__(embedding)
        self.sequence = SequenceFeatures([seen])
        self.compile(optimizer=tf.keras.optimizers.SGD(0.1))

    def call(self, features: Any, training: bool = False) -> Any:
        """Returns numbers, [batch]."""
        features = self.embedding(features)
        seen, _ = self.sequence(features)
        of_places = tf.constant([[[1.0], [2.0], [3.0]]])
        return tf.reduce_sum(features["user"], 1) + tf.reduce_sum(seen * of_places, [1, 2])

    def train_step(self, batch: Any) -> dict[str, Any]:
        features, labels = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(features, training=True) - labels))
        self.minimize(loss, tape)
        return {"loss": loss}


def batches() -> Any:
    """Returns batches with sequences, some of which are cut, and whose ids are in no order."""
    rng = np.random.default_rng(5)
    seen = rng.integers(0, 12, (BATCH, 5)) * (rng.random((BATCH, 5)) < 0.7)
    user = rng.integers(1, 10, (BATCH, 1))

    def backwards(ids: Any) -> Any:
        ids = tf.sparse.from_dense(ids)
        return tf.SparseTensor(ids.indices[::-1], ids.values[::-1], ids.dense_shape)

    def read(user: Any, seen: Any, label: Any) -> Any:
        return {"user": backwards(user), "seen": backwards(seen)}, label

    labels = rng.normal(size=BATCH).astype(np.float32)
    return tf.data.Dataset.from_tensors((user, seen, labels)).repeat().map(read)


def trained(strategy: Any) -> dict[str, Array]:
    """Returns the rows of both tables after three steps."""
    with strategy.scope() if strategy is not None else contextlib.nullcontext():
        model = Clicks()
    model.fit(batches(), steps=3, verbose=0)
    engine = model.embedding.tables.embedding
    engine.retrieve()
    return {name: table.variables["parameters"][0].numpy() for name, table in engine.tables.items()}


@pytest.mark.full
def test_two_cores_train_what_a_host_trains() -> None:
    """Sequences, unsorted ids and the size of a batch come to the driver as it needs them."""
    host = trained(None)
    cores = trained(SoftTPUStrategy(2, hardware="sparsecore", sparse_cores=2))

    assert host.keys() == cores.keys()
    for name, rows in host.items():
        assert np.abs(rows - first_rows(rows.shape).numpy()).max() > 0.01
        np.testing.assert_allclose(cores[name], rows, rtol=0, atol=ROUNDING, err_msg=name)


def test_without_a_batch_size_it_says_what_to_give() -> None:
    """Stacks cannot be made inside of `strategy.run`, and the message names the argument."""
    with SoftTPUStrategy(1, hardware="sparsecore").scope():
        model = Clicks(batch_size=None)

    with pytest.raises(errors.OutOfOrder, match="pass `batch_size` to the Keras layer"):
        model.fit(batches(), steps=1, verbose=0)
