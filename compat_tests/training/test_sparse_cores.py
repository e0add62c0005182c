"""A trainer's tables, driver and ids on SparseCores; migrated programs train with them."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import tensorflow as tf

import tf2_engine
from tf2_engine import EngineSpec, FeatureSpec, TableSpec, errors
from tf2_engine import preprocessing as pre
from tf2_engine.backends import HostDriver
from tf2_engine.soft_tpu import SoftTPUStrategy
from tf2_engine.training import sparse_cores

SPEC = EngineSpec(
    (
        TableSpec("a", 10, 2, "sum", tf2_engine.SGD(0.1, use_gradient_accumulation=False)),
        TableSpec("b", 10, 2, "sum", tf2_engine.SGD(0.1)),
    ),
    (FeatureSpec("seen", "a", max_sequence_length=2), FeatureSpec("word", "b")),
)


def test_the_strategy_decides_which_driver_it_is() -> None:
    """The target runs on the host; a TPU of the first generation is refused by name."""
    driver = sparse_cores.make_driver(tf.distribute.get_strategy())

    assert isinstance(driver, HostDriver)
    assert driver.arithmetic == "sparsecore"
    with pytest.raises(errors.InvalidSpec, match=r"no SparseCores, but .* the first generation"):
        sparse_cores.make_driver(SoftTPUStrategy(1))


@pytest.mark.parametrize("samples", [None, 4])
def test_tables_accumulate_and_positions_are_samples(
    samples: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning names the table whose sequences a TPU would not keep; a host keeps them."""
    with caplog.at_level(logging.WARNING):
        spec = sparse_cores.engine_spec(SPEC, samples)

    assert all(t.optimizer and t.optimizer.use_gradient_accumulation for t in spec.tables)
    assert [text.partition(":")[0] for text in caplog.messages] == ["Table 'a'"]
    seen, word = spec.features
    expected = (2, None) if samples is None else (0, (4, 2))
    assert (seen.max_sequence_length, seen.output_shape) == expected
    assert word == SPEC.features[1]


def test_ids_are_sorted_and_have_positions() -> None:
    """Ids of sequences keep their positions and weights, and longer ones are cut."""
    columns = {
        "seen": pre.Sequence(pre.Weighted(pre.Identity("seen", 10), "share")),
        "word": pre.Identity("word", 10),
    }
    ids = sparse_cores.SparseCoreIds(pre.Preprocessing(columns), SPEC)
    where = [[1, 0], [0, 1], [0, 0], [0, 2]]
    raw = {
        "seen": tf.SparseTensor(where, tf.constant([3, 2, 1, 9], tf.int64), [2, 3]),
        "share": tf.SparseTensor(where, [0.3, 0.2, 0.1, 0.9], [2, 3]),
        "word": tf.SparseTensor([[1, 0], [0, 0]], tf.constant([5, 4], tf.int64), [2, 1]),
    }
    prepared = ids(raw)

    seen, weight = prepared.ids["seen"], (prepared.weights or {})["seen"]
    np.testing.assert_array_equal(seen.indices, [[0, 0, 0], [0, 1, 0], [1, 0, 0]])
    np.testing.assert_array_equal(seen.values, [1, 2, 3])
    np.testing.assert_array_equal(seen.dense_shape, [2, 2, 1])
    assert weight is not None
    np.testing.assert_allclose(weight.values, [0.1, 0.2, 0.3])
    np.testing.assert_array_equal(weight.indices, seen.indices)
    np.testing.assert_array_equal(prepared.ids["word"].values, [4, 5])
    np.testing.assert_array_equal(prepared.lengths["seen"], [3, 1])
