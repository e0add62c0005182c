"""An engine finds its driver in the table of drivers, and calls it through its cores."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tf2_engine import SGD, EngineSpec, FeatureSpec, TableSpec, TPUEmbedding
from tf2_engine.backends import DRIVERS, HostDriver, ReplicaDriver, StepDriver


class OfMirrored(HostDriver):
    """A driver that claims a strategy."""

    strategies = (tf.distribute.MirroredStrategy,)


def engine(driver: str | None = None, num_cores: int | None = None) -> TPUEmbedding:
    """Returns an engine with one table of ones."""
    table = TableSpec("videos", 4, 2, "sum", SGD(0.5), tf.ones_initializer())
    spec = EngineSpec((table,), (FeatureSpec("watched", "videos"),))
    return TPUEmbedding(spec, driver=driver, num_cores=num_cores)


def test_every_driver_says_for_which_cores_it_is_called() -> None:
    """A driver is one of whole steps or one of replicas, and never both."""
    for name, kind in DRIVERS.items():
        assert issubclass(kind, StepDriver) != issubclass(kind, ReplicaDriver), name


def test_a_row_is_all_that_a_driver_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine finds a driver by its name, or under a strategy that the driver claims.

    Elsewhere the host driver is the default.
    """
    monkeypatch.setitem(DRIVERS, "other", OfMirrored)
    assert isinstance(engine("other")._driver, OfMirrored)
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        assert isinstance(engine()._driver, OfMirrored)
    assert type(engine()._driver) is HostDriver


WATCHED = [[0, 1], [1, 3], [2, 1]]
"""Per core the ids of two samples."""


@pytest.mark.parametrize("weighted", ["all", "one core", "none"])
def test_a_lookup_takes_the_parts_of_emulated_cores_as_a_batch_does(weighted: str) -> None:
    """Ids, weights and gradients come as lists by core, and are one step, as with `enqueue`."""
    features = [{"watched": tf.RaggedTensor.from_row_lengths(ids, [1, 1])} for ids in WATCHED]
    weights = None
    if weighted != "none":
        weights = [
            {"watched": part["watched"].with_values(tf.constant([2.0, 3.0 + core]))}
            if weighted == "all" or core == 1
            else None
            for core, part in enumerate(features)
        ]
    gradients = [{"watched": tf.fill([2, 2], core + 1.0)} for core in range(3)]
    looked_up, enqueued = engine(num_cores=3), engine(num_cores=3)

    activations, update = looked_up.differentiable_lookup(features, weights)
    update(gradients)
    enqueued.enqueue(features, weights)
    expected = enqueued.dequeue()
    enqueued.apply_gradients(gradients)

    assert len(activations) == 3
    for one, other in zip(activations, expected, strict=True):
        np.testing.assert_array_equal(one["watched"], other["watched"])
    rows, other_rows = (
        each.tables["videos"].variables["parameters"][0].numpy() for each in (looked_up, enqueued)
    )
    np.testing.assert_array_equal(rows, other_rows)
    gains = [[2.0, 3.0 + core] if weights and weights[core] else [1.0, 1.0] for core in range(3)]
    moved = np.ones(4)
    for core, ids in enumerate(WATCHED):
        for id_, gain in zip(ids, gains[core], strict=True):
            moved[id_] -= 0.5 * gain * (core + 1.0)
    np.testing.assert_array_equal(rows[:, 0], moved)
