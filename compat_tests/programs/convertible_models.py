"""Compiled Keras 2 models of several kinds, and the batches that their estimators train on."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf2_engine import tf_compat

keras: Any = tf_compat.keras2()

_ROWS, _BATCH = 256, 16


@functools.cache
def rows() -> dict[str, np.ndarray]:
    """Returns the columns of a table: inputs a and b, what is predicted of them, and weights."""
    rng = np.random.default_rng(11)
    a = rng.normal(size=[_ROWS, 4]).astype(np.float32)
    b = rng.integers(12, size=[_ROWS, 3])
    return {
        "a": a,
        "b": b,
        "amount": (a.sum(axis=1, keepdims=True) + (b[:, :1] > 5)).astype(np.float32),
        "kind": (b.sum(axis=1) % 3).astype(np.int64),
        "weight": rng.uniform(0.5, 1.5, size=_ROWS).astype(np.float32),
    }


def _batches(features: Any, labels: Any, epochs: int | None) -> Any:
    columns = rows()
    table = tf.nest.map_structure(columns.__getitem__, (features, labels))
    data = tf.data.Dataset.from_tensor_slices(table)
    return data.repeat(epochs).batch(_BATCH, drop_remainder=True)


class Tower(keras.Model):  # type: ignore[misc]
    """A program's own model, which can be copied by its config."""

    def __init__(self, width: int, **options: Any) -> None:
        super().__init__(**options)
        self.width = width
        self.hidden = keras.layers.Dense(width, activation="tanh")
        self.last = keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        """Returns the amounts, [batch, 1]."""
        return self.last(self.hidden(inputs))

    def get_config(self) -> dict[str, Any]:
        return {"width": self.width}


def _sequential() -> Any:
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Dense(8, activation="relu", input_shape=(4,)),
            layers.Dropout(0.3),
            layers.BatchNormalization(),
            layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.legacy.Adam(0.01), "mse", metrics=["mae", "mse"])
    return model


def _functional() -> Any:
    """Has two inputs and two outputs, by name, and a regularization loss."""
    layers = keras.layers
    a, b = keras.Input([4], name="a"), keras.Input([3], name="b", dtype=tf.int64)
    embedded = layers.Flatten()(layers.Embedding(12, 5, name="embedding")(b))
    both = layers.concatenate([layers.Dense(6, kernel_regularizer="l2")(a), embedded])
    hidden = layers.Dropout(0.2)(layers.Dense(8, activation="elu")(both))
    outputs = {
        "amount": layers.Dense(1, name="amount")(hidden),
        "kind": layers.Dense(3, activation="softmax", name="kind")(hidden),
    }
    model = keras.Model([a, b], list(outputs.values()))
    model.compile(
        keras.optimizers.legacy.RMSprop(0.005),
        {"amount": "mse", "kind": "sparse_categorical_crossentropy"},
        metrics={"amount": "mae", "kind": "accuracy"},
        loss_weights={"amount": 1.0, "kind": 0.5},
    )
    return model


def _own_class() -> Any:
    model = Tower(6)
    model.compile(keras.optimizers.legacy.SGD(0.05, momentum=0.9), "mse", metrics=["mae"])
    return model


def _new_optimizer() -> Any:
    model = keras.Sequential([keras.layers.Dense(1, input_shape=(4,))])
    model.compile(keras.optimizers.Adagrad(0.1), "mae")
    return model


MAKERS: dict[str, Callable[[], Any]] = {
    "sequential": _sequential,
    "functional": _functional,
    "own class": _own_class,
    "new optimizer": _new_optimizer,
}


def make(name: str) -> Any:
    """Returns a compiled model with the same weights and names at every call."""
    keras.backend.clear_session()
    # Keras draws seeds of initializers by `random`. `keras.utils.set_random_seed` would decide them
    # for the rest of the process.
    random.seed(5)
    tf.random.set_seed(5)
    return MAKERS[name]()


def input_fn(name: str, weighted: bool = False, epochs: int | None = None) -> Any:
    """Returns batches of 16 rows for a model, with weights of the examples if asked for."""
    if name == "functional":
        features, labels = {"a": "a", "b": "b"}, {"amount": "amount", "kind": "kind"}
        weights: Any = {"amount": "weight", "kind": "weight"}
    else:
        features, labels, weights = "a", "amount", "weight"  # type: ignore[assignment]
    inputs = {"features": features, "sample_weights": weights} if weighted else features
    return _batches(inputs, labels, epochs)
