"""Stock's Estimator restores a checkpoint that parameter servers saved."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cluster.tables_on_servers import TABLES, train
from estimator_bridge.checkpoint_files import Reader


@pytest.mark.full
@pytest.mark.parametrize("servers", [1, 2, 5])
def test_stock_restores_all_rows(servers: int, tmp_path: pathlib.Path) -> None:
    """Tables and slots are variables like any other to stock: in one piece, with every row."""
    path = train(tmp_path, servers, 2)
    with Reader(path) as reader:
        stored = {name: tensor.shape for name, tensor in reader.tensors.items()}
    names = [name for name in stored if name.startswith(TABLES)]
    assert len(names) == 4

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        variables = [tf.compat.v1.get_variable(name, stored[name]) for name in names]
        predictions = dict(zip(names, map(tf.identity, variables), strict=True))
        return tf.estimator.EstimatorSpec(mode, predictions=predictions)

    def input_fn() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors({"none": [0.0]})

    estimator = tf.estimator.Estimator(model_fn, str(tmp_path))
    assert type(estimator).__module__.startswith("tensorflow_estimator.")
    predicted = next(estimator.predict(input_fn, yield_single_examples=False))
    checkpoint = tf.train.load_checkpoint(path)
    for name in names:
        assert predicted[name].shape == stored[name]
        np.testing.assert_array_equal(predicted[name], checkpoint.get_tensor(name), name)
    # Ids of the first batches: rows that training has changed, on the last server as on the first.
    slots = predicted[f"{TABLES[0]}/Adagrad"]
    changed = np.flatnonzero(np.any(slots != slots.flat[-1], axis=1))
    assert changed.min() < len(slots) / 5
    assert changed.max() > len(slots) * 4 / 5
