"""Programs that use the TPU of a resolver work under `run`, although there is no TPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from estimator_bridge.defaults import DEFAULTS
from estimator_bridge.run import install, stock_names


@pytest.fixture
def resolver() -> Iterator[Any]:
    """A resolver as programs under `run --cores 2` get it."""
    install.install(replace=True)
    DEFAULTS.cores = 2
    yield tf.distribute.cluster_resolver.TPUClusterResolver(tpu="")
    DEFAULTS.cores = None
    install.uninstall()


def test_the_system_is_initialized_without_a_tpu(resolver: Any) -> None:
    tf.config.experimental_connect_to_cluster(resolver)
    for path in stock_names.PUBLIC_NAMESPACES:
        module = install.public_module(f"{path}.tpu.experimental")
        assert module.initialize_tpu_system(resolver).num_tpus_per_task == 2
        module.shutdown_tpu_system(resolver)
    install.uninstall()
    with pytest.raises((AssertionError, TypeError)):
        tf.tpu.experimental.initialize_tpu_system(resolver)


@pytest.mark.full
def test_a_strategy_of_a_resolver_runs_on_software_cores(resolver: Any) -> None:
    """A strategy of a resolver, as in notebooks, trains Keras on as many software cores."""
    tf.tpu.experimental.initialize_tpu_system(resolver)
    strategy = tf.distribute.TPUStrategy(resolver)
    assert isinstance(strategy, tf.distribute.TPUStrategy)
    assert isinstance(strategy, tf.distribute.experimental.TPUStrategy)
    assert not isinstance(tf.distribute.get_strategy(), tf.distribute.TPUStrategy)
    assert strategy.num_replicas_in_sync == 2
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, use_bias=False)])
        model.compile(tf.keras.optimizers.legacy.SGD(0.1), "mse")
        model.build([None, 3])
        model.set_weights([np.ones((3, 1), np.float32)])
    model.fit(np.ones((8, 3)), np.zeros((8, 1)), batch_size=8, shuffle=False, verbose=0)

    # The loss is (sum of w)^2, over both replicas: its gradient is 2 * 3 for each w.
    np.testing.assert_allclose(model.get_weights()[0], np.full((3, 1), 1 - 0.1 * 6), rtol=1e-6)
