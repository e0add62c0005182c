"""An engine finds its driver in the table of drivers, and calls it through its cores."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tf2_engine import SGD, EngineSpec, FeatureSpec, TableSpec, TPUEmbedding
from tf2_engine.backends import DRIVERS, HostDriver, ReplicaDriver, StepDriver


class Other(HostDriver):
    """A driver that is nobody's default."""


class OfMirrored(HostDriver):
    """A driver that claims a strategy."""

    strategies = (tf.distribute.MirroredStrategy,)


def engine(driver: str | None = None) -> TPUEmbedding:
    """Returns an engine with one table of ones."""
    table = TableSpec("videos", 4, 2, "sum", SGD(0.5), tf.ones_initializer())
    spec = EngineSpec((table,), (FeatureSpec("watched", "videos"),))
    return TPUEmbedding(spec, driver=driver)


def test_every_driver_says_for_which_cores_it_is_called() -> None:
    """A driver is one of whole steps or one of replicas, and never both."""
    for name, kind in DRIVERS.items():
        assert issubclass(kind, StepDriver) != issubclass(kind, ReplicaDriver), name


def test_a_row_is_all_that_a_driver_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine looks up and trains on a driver that it has never heard of, by its name."""
    monkeypatch.setitem(DRIVERS, "other", Other)
    embedding = engine("other")

    embedding.enqueue({"watched": tf.constant([1, 2])})
    activations = embedding.dequeue()
    embedding.apply_gradients({"watched": tf.ones([2, 2])})

    assert isinstance(embedding._driver, Other)
    np.testing.assert_array_equal(activations["watched"], np.ones((2, 2)))
    rows = embedding.tables["videos"].variables["parameters"][0].numpy()
    np.testing.assert_array_equal(rows[:, 0], [1.0, 0.5, 0.5, 1.0])


def test_a_driver_may_claim_a_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a strategy that a driver claims it is the default; elsewhere the host driver is."""
    monkeypatch.setitem(DRIVERS, "other", OfMirrored)
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        assert isinstance(engine()._driver, OfMirrored)
    assert type(engine()._driver) is HostDriver
