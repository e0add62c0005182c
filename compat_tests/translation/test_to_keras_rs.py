"""`to_tf2(target="keras_rs")`: a legacy spec for a layer of keras_rs, or why it cannot be.

Oracle: the same spec on the host driver, with the arithmetic of SparseCores.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf2_engine
from estimator_bridge import errors
from estimator_bridge.legacy import parameters
from estimator_bridge.legacy.spec import EmbeddingConfigSpec
from estimator_bridge.legacy.table_config import FeatureConfig, TableConfig
from tf2_engine.backends import HostDriver
from tf2_engine.soft_tpu import SoftTPUStrategy

needs_keras_rs = pytest.mark.skipif(
    importlib.util.find_spec("keras_rs") is None,
    reason="keras-rs is for Python 3.11 and later, and TensorFlow 2.21",
)

SAMPLES, LENGTH = 4, 3
STEPS = 3

ROUNDING = 1e-6
"""Sums of at most 24 gradients of the order of 1 are in another order on two cores: 24 * 2^-24."""

TAKEN = {
    "Adagrad": parameters.AdagradParameters(0.125),
    "Adam": parameters.AdamParameters(0.125, epsilon=1e-3),
    "FTRL": parameters.FtrlParameters(0.125, initial_accumulator_value=0.25),
    "SGD": parameters.StochasticGradientDescentParameters(0.125),
}


def spec_of(optimizer: Any) -> Any:
    """Returns a spec with two tables, one of which has a sequence; rows begin as ones."""
    return EmbeddingConfigSpec(
        feature_to_config_dict={
            "f": FeatureConfig("t"),
            "g": FeatureConfig("u", max_sequence_length=LENGTH),
        },
        table_to_config_dict={
            name: TableConfig(13, 4, initializer=tf.ones_initializer()) for name in ("t", "u")
        },
        optimization_parameters=optimizer,
    )


def test_what_the_layer_lacks_is_refused_beside_what_sparse_cores_lack() -> None:
    """AdagradMomentum is refused by table, and weight decay in the same error."""
    momentum = parameters.AdagradMomentumParameters(0.1, 0.9)
    spec = spec_of(parameters.AdagradMomentumParameters(0.1, 0.9, weight_decay_factor=0.5))
    with pytest.raises(errors.Untranslatable, match="SparseCores cannot honour") as raised:
        spec.to_tf2(target="keras_rs", batch_size=SAMPLES)

    for words in ("table 't': AdagradMomentumParameters", "table 'u': ", "weight_decay_factor=0.5"):
        assert words in str(raised.value)
    assert spec_of(momentum).to_tf2(target="sparsecore", batch_size=SAMPLES)


def test_what_is_beside_the_layer_is_reported() -> None:
    """The strategy and the checkpoints are changes by hand; all others are those of SparseCores."""
    keras_rs, sparse_cores = (
        spec_of(parameters.AdagradParameters(0.1, use_gradient_accumulation=False))
        .to_tf2(target=target, batch_size=SAMPLES)
        .report.changes
        for target in ("keras_rs", "sparsecore")
    )
    added = [change for change in keras_rs if change not in sparse_cores]

    assert [change for change in keras_rs if change not in added] == list(sparse_cores)
    assert [(each.setting, each.effect) for each in added] == [
        ("strategy", "by hand"),
        ("checkpoints", "by hand"),
    ]


def batch(step: int, core: int) -> dict[str, Any]:
    """Returns the ids of a core as the legacy input function has them, in no order."""
    rng = np.random.default_rng([step, core])
    ids = rng.integers(1, 4, (2, SAMPLES, 4)) * (rng.random((2, SAMPLES, 4)) < 0.7)
    features = {}
    for name, values in zip(("f", "g"), ids, strict=True):
        sparse = tf.sparse.from_dense(values)
        backwards = (sparse.indices[::-1], sparse.values[::-1])
        features[name] = tf.SparseTensor(*backwards, sparse.dense_shape)
    return features


@needs_keras_rs
@pytest.mark.full
@pytest.mark.parametrize("kind", TAKEN)
def test_the_layer_trains_what_the_host_trains(kind: str, tmp_path: Any) -> None:
    """On two cores three steps of the layer have the activations of the host driver.

    Gradients come by `tape.gradient` of the layer's own variable. The checkpoint that the report
    names has the tables.
    """
    import keras_rs  # type: ignore[import-not-found]

    tf2 = spec_of(TAKEN[kind]).to_tf2(target="keras_rs", batch_size=SAMPLES)
    host = tf2_engine.TPUEmbedding(
        tf2.engine_spec, driver=HostDriver(arithmetic="sparsecore"), num_cores=2
    )
    strategy = SoftTPUStrategy(2, hardware="sparsecore", sparse_cores=2)
    with strategy.scope():
        layer = keras_rs.layers.DistributedEmbedding(tf2.feature_config, **tf2.options)
    # By hand: a build inside of a function would make the tables in its graph.
    with strategy.scope():
        layer._tpu_embedding.build()
    weight = {"f": tf.constant([[1.0], [2.0], [-1.0], [0.5]]), "g": tf.constant(0.5)}

    @tf.function
    def train(ids: Any) -> Any:
        def replica(ids: Any) -> Any:
            with tf.GradientTape() as tape:
                activations = layer(ids)
                loss = sum(tf.reduce_sum(weight[k] * activations[k]) for k in ("f", "g"))
            tape.gradient(loss, layer.trainable_variables)
            return activations

        return strategy.run(replica, args=(ids,))

    for step in range(STEPS):
        raw = [batch(step, core) for core in range(2)]
        ids = [tf2.preprocessing_of_ids(features).ids for features in raw]
        activations = train(
            {
                name: strategy.experimental_distribute_values_from_function(
                    lambda context, name=name: ids[context.replica_id_in_sync_group][name]  # type: ignore[misc]
                )
                for name in ("f", "g")
            }
        )
        host.enqueue(raw)
        expected = host.dequeue()
        host.apply_gradients(
            [{k: tf.zeros_like(v) + weight[k] for k, v in e.items()} for e in expected]
        )
        for name in ("f", "g"):
            for core, value in enumerate(strategy.experimental_local_results(activations[name])):
                theirs = expected[core][name].numpy()
                assert step == 0 or np.abs(theirs).max() > 0
                np.testing.assert_allclose(
                    value.numpy().reshape(theirs.shape), theirs, rtol=0, atol=ROUNDING
                )

    saved = tf.train.Checkpoint(tables=layer._tpu_embedding).save(str(tmp_path / "saved"))
    keys = tf.train.load_checkpoint(saved).get_variable_to_shape_map()
    assert "tables/t_u/.ATTRIBUTES/VARIABLE_VALUE" in keys
