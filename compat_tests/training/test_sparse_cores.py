"""A trainer's tables, driver, limits and ids on SparseCores; migrated programs train on them."""

from __future__ import annotations

import logging
import types
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf2_engine
from tf2_engine import EngineSpec, FeatureSpec, SparseCoreLimits, TableSpec, errors, training
from tf2_engine import preprocessing as pre
from tf2_engine.backends import HostDriver
from tf2_engine.backends.sparsecore.driver import accumulating, driver_for_sparsecore
from tf2_engine.keras import TPUEmbedding
from tf2_engine.preprocessing.module import in_order
from tf2_engine.soft_tpu import SoftTPUStrategy

SPEC = EngineSpec(
    (
        TableSpec("a", 10, 2, "sum", tf2_engine.SGD(0.1, use_gradient_accumulation=False)),
        TableSpec("b", 10, 2, "sum", tf2_engine.SGD(0.1)),
    ),
    (FeatureSpec("seen", "a", max_sequence_length=2), FeatureSpec("word", "b")),
)


def test_the_strategy_decides_which_driver_it_is() -> None:
    """The target runs on the host; a TPU of the first generation is refused by name."""
    driver = driver_for_sparsecore()

    assert isinstance(driver, HostDriver)
    assert driver.arithmetic == "sparsecore"
    with (
        SoftTPUStrategy(1).scope(),
        pytest.raises(errors.InvalidSpec, match=r"no SparseCores, but .* the first generation"),
    ):
        driver_for_sparsecore()


def test_tables_accumulate(caplog: pytest.LogCaptureFixture) -> None:
    """A warning names the table whose setting is ignored, and no other."""
    with caplog.at_level(logging.WARNING):
        spec = accumulating(SPEC)

    assert all(t.optimizer and t.optimizer.use_gradient_accumulation for t in spec.tables)
    assert [text.partition(":")[0] for text in caplog.messages] == ["Table 'a'"]
    assert spec.features == SPEC.features


def test_ids_are_in_order() -> None:
    """Ids and their weights are in the order of samples and positions; lengths stay."""
    columns = {
        "seen": pre.Sequence(pre.Weighted(pre.Identity("seen", 10), "share")),
        "word": pre.Identity("word", 10),
    }
    where = [[1, 0], [0, 1], [0, 0], [0, 2]]
    raw = {
        "seen": tf.SparseTensor(where, tf.constant([3, 2, 1, 9], tf.int64), [2, 3]),
        "share": tf.SparseTensor(where, [0.3, 0.2, 0.1, 0.9], [2, 3]),
        "word": tf.SparseTensor([[1, 0], [0, 0]], tf.constant([5, 4], tf.int64), [2, 1]),
    }
    prepared = in_order(pre.Preprocessing(columns)(raw))

    seen, weight = prepared.ids["seen"], (prepared.weights or {})["seen"]
    np.testing.assert_array_equal(seen.values, [1, 2, 9, 3])
    assert weight is not None
    np.testing.assert_allclose(weight.values, [0.1, 0.2, 0.9, 0.3])
    np.testing.assert_array_equal(weight.indices, seen.indices)
    np.testing.assert_array_equal(prepared.ids["word"].values, [4, 5])
    np.testing.assert_array_equal(prepared.lengths["seen"], [3, 1])


# Limits of ids.

LIMITS: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({"max_ids_per_table": {"a": 0}}, r"`max_ids_per_table`\['a'\] must be .*, got 0"),
    "a text": (
        {"max_unique_ids_per_table": {"a": "9"}},
        r"`max_unique_ids_per_table`\['a'\] must be an int of at least 1, got '9'",
    ),
    "a flag": ({"max_ids_per_chip_per_sample": True}, "`max_ids_per_chip_per_sample` must be"),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_that_is_no_number_is_refused(name: str) -> None:
    arguments, message = LIMITS[name]
    with pytest.raises(errors.InvalidSpec, match=message):
        SparseCoreLimits(**arguments)


def test_a_config_of_stock_is_taken() -> None:
    """The config of stock's class has the limits under the same names; others are refused."""
    config = types.SimpleNamespace(
        disable_table_stacking=True,
        max_ids_per_chip_per_sample=32,
        max_ids_per_table={"a": 512},
        max_unique_ids_per_table=None,
        allow_id_dropping=False,
        initialize_tables_on_host=True,
    )
    limits = SparseCoreLimits.of(config)

    assert limits == SparseCoreLimits(
        {"a": 512}, max_ids_per_chip_per_sample=32, disable_table_stacking=True
    )
    assert SparseCoreLimits.of(None) == SparseCoreLimits()
    with pytest.raises(errors.WrongType, match="or a SparseCoreEmbeddingConfig, got 512"):
        SparseCoreLimits.of(512)


def test_limits_beside_another_arithmetic_are_refused() -> None:
    table = tf.tpu.experimental.embedding.TableConfig(10, 4, name="words")
    feature = tf.tpu.experimental.embedding.FeatureConfig(table)
    limits = SparseCoreLimits({"words": 512})
    for make in (
        lambda: training.Trainer(
            lambda features: None, embedding_config_spec=1, sparse_core_limits=limits
        ),
        lambda: TPUEmbedding(feature, tf2_engine.SGD(0.1), sparse_core_limits=limits),
    ):
        with pytest.raises(
            errors.InvalidSpec, match=r"limits.* but the arithmetic is .*which does not"
        ):
            make()


def test_a_host_says_that_it_has_no_limits(caplog: pytest.LogCaptureFixture) -> None:
    """A warning is for what changes numbers: ids that a TPU would drop."""
    for drops, count in ((False, 0), (True, 1)):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            driver_for_sparsecore(SparseCoreLimits(allow_id_dropping=drops))
        assert len(caplog.messages) == count
