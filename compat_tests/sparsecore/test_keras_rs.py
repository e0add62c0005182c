"""`keras_rs.layers.DistributedEmbedding` from a legacy spec trains the same as the host driver.

Oracle: the host driver with the arithmetic of SparseCores, and with the legacy ids of the same
spec.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf2_engine
from estimator_bridge import convert
from estimator_bridge.legacy import parameters
from estimator_bridge.legacy.spec import EmbeddingConfigSpec
from estimator_bridge.legacy.table_config import FeatureConfig, TableConfig
from tf2_engine.backends import HostDriver
from tf2_engine.soft_tpu import SoftTPUStrategy

SAMPLES, LENGTH, CORES = 4, 3, 2
STEPS = 3

ROUNDING = 1e-6
"""Sums of at most 24 gradients of the order of 1 are in another order on two cores: 24 * 2^-24 of
them. Relative to the largest magnitude, or to 1: slots are sums of squares of up to 20."""

OPTIMIZERS = {
    "Adagrad": parameters.AdagradParameters(0.125),
    "Adam": parameters.AdamParameters(0.125, epsilon=1e-3),
    "Adam, sum outside": parameters.AdamParameters(0.125, epsilon=1e-3, sum_inside_sqrt=False),
    "FTRL": parameters.FtrlParameters(0.125, initial_accumulator_value=0.25),
    "FTRL, times the rate": parameters.FtrlParameters(
        0.125, initial_accumulator_value=0.25, multiply_linear_by_learning_rate=True
    ),
    "SGD": parameters.StochasticGradientDescentParameters(0.125),
}
"""Those that the layer takes, with the settings that keras_rs has no word for by itself."""

FACTORS = {"f": [[1.0], [2.0], [-1.0], [0.5]], "g": 0.5, "h": [[-1.0], [0.25], [2.0], [1.0]]}
"""The loss is the sum of the activations, multiplied by these."""


def spec_of(optimizer: Any) -> Any:
    """Returns a spec with a plain feature, a sequence, and one with weights; rows begin as ones."""
    return EmbeddingConfigSpec(
        feature_to_config_dict={
            "f": FeatureConfig("t"),
            "g": FeatureConfig("u", max_sequence_length=LENGTH),
            "h": FeatureConfig("t", weight_key="w"),
        },
        table_to_config_dict={
            "t": TableConfig(13, 4, initializer=tf.ones_initializer(), combiner="sqrtn"),
            "u": TableConfig(13, 4, initializer=tf.ones_initializer(), combiner="mean"),
        },
        optimization_parameters=optimizer,
    )


def batch(step: int, core: int) -> dict[str, Any]:
    """Returns what the legacy input function has for a core: ids and weights, in no order."""
    rng = np.random.default_rng([step, core])
    there = rng.random((3, SAMPLES, 4)) < 0.7
    ids = rng.integers(1, 13, there.shape) * there

    def backwards(values: Any) -> tf.SparseTensor:
        sparse = tf.sparse.from_dense(values)
        return tf.SparseTensor(sparse.indices[::-1], sparse.values[::-1], sparse.dense_shape)

    weights = np.where(there[2], rng.uniform(0.5, 2.0, there[2].shape), 0.0).astype(np.float32)
    return {**{k: backwards(v) for k, v in zip("fgh", ids, strict=True)}, "w": backwards(weights)}


def layer_of(feature_config: Any, **options: Any) -> Any:
    import keras_rs  # type: ignore[import-not-found]

    return keras_rs.layers.DistributedEmbedding(feature_config, **options)


class Layer:
    """The layer with the tables of a spec on two cores of two software SparseCores."""

    def __init__(self, optimizer: Any, **options: Any) -> None:
        self.tf2 = spec_of(optimizer).to_tf2(target="keras_rs", batch_size=SAMPLES)
        self.strategy = SoftTPUStrategy(CORES, hardware="sparsecore", sparse_cores=2)
        with self.strategy.scope():
            self.layer = layer_of(self.tf2.feature_config, **self.tf2.options, **options)
            self.layer.build(dict.fromkeys(self.tf2.feature_config, ()))
        self.checkpoint = tf.train.Checkpoint(tables=self.layer._tpu_embedding)
        self._step = tf.function(self._run, autograph=False)

    def _run(self, ids: Any, weights: Any) -> Any:
        def replica(ids: Any, weights: Any) -> Any:
            with tf.GradientTape() as tape:
                activations = self.layer(ids, weights)
                loss = sum(tf.reduce_sum(FACTORS[k] * v) for k, v in activations.items())
            tape.gradient(loss, self.layer.trainable_variables)
            return activations

        return self.strategy.run(replica, args=(ids, weights))

    def train(self, raw: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Trains on the batches of the cores; returns the activations of each."""
        prepared = [self.tf2.preprocessing_of_ids(features) for features in raw]
        activations = self._step(
            self._distributed([each.ids for each in prepared]),
            self._distributed([each.weights for each in prepared]),
        )
        local = {k: self.strategy.experimental_local_results(v) for k, v in activations.items()}
        return [{k: v[core].numpy() for k, v in local.items()} for core in range(CORES)]

    def _distributed(self, values: list[Mapping[str, Any]]) -> dict[str, Any]:
        def of_core(name: str) -> Any:
            return lambda context: values[context.replica_id_in_sync_group][name]

        distribute = self.strategy.experimental_distribute_values_from_function
        return {
            name: None if value is None else distribute(of_core(name))
            for name, value in values[0].items()
        }


def trained_host(optimizer: Any) -> tuple[list[list[dict[str, Any]]], dict[str, Any]]:
    """Returns activations, by step and core, and tables and slots of the host driver."""
    tf2 = spec_of(optimizer).to_tf2()
    driver = HostDriver(arithmetic="sparsecore")
    host = tf2_engine.TPUEmbedding(tf2.engine_spec, driver=driver, num_cores=CORES)
    activations = []
    for step in range(STEPS):
        prepared = [tf2.preprocessing_of_ids(batch(step, core)) for core in range(CORES)]
        host.enqueue([each.ids for each in prepared], [each.weights for each in prepared])
        of_cores = host.dequeue()
        host.apply_gradients(
            [{k: tf.zeros_like(v) + FACTORS[k] for k, v in each.items()} for each in of_cores]
        )
        activations.append([{k: v.numpy() for k, v in each.items()} for each in of_cores])
    return activations, {
        name if slot == "parameters" else f"{name}/{slot}": parts[0].numpy()
        for name, table in host.tables.items()
        for slot, parts in table.variables.items()
    }


def assert_same(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Asserts that arrays are equal up to rounding."""
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        allowed = ROUNDING * max(1.0, float(np.abs(values).max()))
        np.testing.assert_allclose(
            ours[name].reshape(values.shape), values, rtol=0, atol=allowed, err_msg=name
        )


@pytest.mark.full
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_layer_trains_what_the_host_trains(name: str, tmp_path: pathlib.Path) -> None:
    """Three steps on two cores have the host's activations, and its tables and slots at the end.

    Gradients come by `tape.gradient` of the layer's own variable. Tables are read as the report
    says: `convert` takes the checkpoint with the layer's tables to the form of tf2_engine.
    """
    expected, tables = trained_host(OPTIMIZERS[name])
    layer = Layer(OPTIMIZERS[name])
    for step, of_cores in enumerate(expected):
        for ours, theirs in zip(
            layer.train([batch(step, core) for core in range(CORES)]), of_cores, strict=True
        ):
            assert_same(ours, theirs)

    assert min(np.abs(tables[table] - 1.0).max() for table in "tu") > 0.1
    saved = layer.checkpoint.save(str(tmp_path / "saved"))
    convert.convert(saved, str(tmp_path / "converted"), to="object")
    reader = tf.train.load_checkpoint(str(tmp_path / "converted"))
    keys = [key for key in reader.get_variable_to_shape_map() if key.startswith("tables/")]
    assert_same({_short(key): reader.get_tensor(key) for key in keys}, tables)


def _short(key: str) -> str:
    """Returns the name that `trained_host` has for the key of a checkpoint."""
    return key.split("/")[1].replace(".S", "/")


@pytest.mark.full
def test_a_restored_layer_goes_on(tmp_path: pathlib.Path) -> None:
    """The checkpoint that the report names is all of it: a new layer goes on with the same bits."""
    first, second = (Layer(OPTIMIZERS["Adagrad"]) for _ in range(2))
    steps = [[batch(step, core) for core in range(CORES)] for step in range(2)]
    first.train(steps[0])
    second.checkpoint.restore(first.checkpoint.save(str(tmp_path / "saved"))).assert_consumed()

    for ours, theirs in zip(second.train(steps[1]), first.train(steps[1]), strict=True):
        for name, values in theirs.items():
            np.testing.assert_array_equal(ours[name], values)


@pytest.mark.full
def test_what_the_report_says_of_the_layer(tmp_path: pathlib.Path) -> None:
    """The layer still lacks what is refused, or to be done beside it."""
    momentum = spec_of(parameters.AdagradMomentumParameters(0.125, 0.5))
    refused = momentum.to_tf2(target="sparsecore", batch_size=SAMPLES).feature_config
    trained = Layer(OPTIMIZERS["SGD"])

    with trained.strategy.scope(), pytest.raises(ValueError, match="Unknown optimizer type"):
        layer_of(refused)
    with pytest.raises(ValueError, match="not running under a TPU strategy"):
        layer_of(trained.tf2.feature_config)
    with trained.strategy.scope(), pytest.raises(KeyError, match="t"):
        trained.layer.get_embedding_tables()
    alone = tf.train.Checkpoint(layer=trained.layer).save(str(tmp_path / "alone"))
    assert not [name for name, _ in tf.train.list_variables(alone) if "t_u" in name]


@pytest.mark.full
def test_limits_of_ids_reach_stocks_class() -> None:
    """A config of limits beside the FeatureConfigs holds for the TPUEmbeddingV2 inside."""
    limits = tf.tpu.experimental.embedding.SparseCoreEmbeddingConfig(max_ids_per_table={"t_u": 1})
    layer = Layer(OPTIMIZERS["SGD"], sparse_core_embedding_config=limits)

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"max ids per sparse core .* 1 for"):
        layer.train([batch(0, core) for core in range(CORES)])
