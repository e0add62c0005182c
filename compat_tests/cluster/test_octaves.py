"""The layout "octaves" of an estimator: all parameter servers have about the same load."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cluster.tables_on_servers import estimator, start_cluster
from estimator_bridge import errors
from estimator_bridge import estimator as est
from estimator_bridge.defaults import DEFAULTS
from estimator_bridge.legacy import parameters
from estimator_bridge.runtime.step import devices

v1, fc = tf.compat.v1, tf.feature_column
ROWS, DIM, SAMPLES, IDS, SERVERS = 200_000, 16, 1024, 8, 8
_RECEIVED = re.compile(
    r"^\[([\d.]+)(B|MB)\] .* from /job:ps/replica:0/task:(\d+)/\S+ to /job:chief/"
)
_UNITS = {"B": 1, "MB": 1 << 20}


class Received(v1.train.SessionRunHook):
    """Counts the bytes of tensors that the chief receives from each server."""

    def __init__(self) -> None:
        self.bytes = np.zeros(SERVERS)

    def before_run(self, run_context: Any) -> Any:
        return v1.train.SessionRunArgs(
            None, options=v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
        )

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Adds the bytes that each server has sent."""
        for device in run_values.run_metadata.step_stats.dev_stats:
            for node in device.node_stats:
                message = _RECEIVED.match(node.timeline_label)
                if message is not None:
                    size, unit, server = message.groups()
                    self.bytes[int(server)] += float(size) * _UNITS[unit]


def received(folder: pathlib.Path, layout: Any) -> Any:
    """Trains three steps on ids by a Zipf law; returns the bytes from each server."""
    column = v1.tpu.experimental.embedding_column(
        fc.categorical_column_with_identity("ids", ROWS), DIM
    )

    def input_fn(params: Any) -> Any:
        frequency = np.arange(1, ROWS + 1) ** -1.2
        ids = np.random.default_rng(5).choice(
            ROWS, [4 * SAMPLES, IDS], p=frequency / frequency.sum()
        )
        features = {"ids": ids + 0}
        dataset = tf.data.Dataset.from_tensor_slices(features).batch(params["batch_size"], True)
        return dataset.map(lambda batch: (batch, tf.zeros([SAMPLES, 1])))

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        net = v1.feature_column.input_layer(features, [column])
        loss = tf.reduce_mean((tf.reduce_sum(net, 1, keepdims=True) - labels) ** 2)
        step = v1.assign_add(v1.train.get_global_step(), 1)
        return est.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=step)

    hook = Received()
    with pytest.MonkeyPatch.context() as patch:
        start_cluster(patch, SERVERS)
        config = est.tpu.RunConfig(
            model_dir=str(folder),
            save_checkpoints_steps=None,
            save_checkpoints_secs=None,
            log_step_count_steps=None,
            tpu_config=est.tpu.TPUConfig(iterations_per_loop=1),
        )
        est.tpu.TPUEstimator(
            model_fn,
            config=config,
            train_batch_size=SAMPLES,
            layout=layout,
            embedding_config_spec=est.tpu.experimental.EmbeddingConfigSpec(
                feature_columns=[column], optimization_parameters=parameters.AdagradParameters(0.1)
            ),
        ).train(input_fn, steps=3, hooks=[hook])
    return hook.bytes


@pytest.mark.full
def test_lookups_of_octaves_are_even(tmp_path: pathlib.Path) -> None:
    """Of 8 servers none answers with more than 1.15 of the mean, though few rows are frequent.

    Measured: the bytes of tensors that the chief, whose the cores are, has received. In contiguous
    parts the first server answers most; a measurement that could not tell would prove nothing.
    """
    octaves, div = (received(tmp_path / layout, layout) for layout in ("octaves", "div"))
    distinct = sum(octaves) / (DIM * 4) / 3
    assert 1000 < distinct < SAMPLES * IDS  # the rows of a step
    assert max(octaves) / np.mean(octaves) <= 1.15, octaves
    assert max(div) / np.mean(div) > 3, div


def test_the_layout_of_a_spec_by_mod_is_its_own(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layout beside partition_strategy="mod", and one that is none, are refused by name."""
    with pytest.raises(errors.InvalidInput, match="`layout`='octaves', but the embedding spec has"):
        estimator(tmp_path, layout="octaves", partition_strategy="mod")
    with pytest.raises(errors.InvalidInput, match="`layout` must be 'div' or 'octaves', got 'ring"):
        estimator(tmp_path, layout="rings")
    # The choice of `run --layout` is that of an estimator that says none.
    monkeypatch.setattr(DEFAULTS, "layout", "octaves")
    assert devices.layout_of(None, "div") == "octaves"
    assert devices.layout_of("div", "mod") == "mod"
