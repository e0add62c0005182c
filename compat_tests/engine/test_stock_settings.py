"""Each setting of stock's configuration objects is read, or refused with an error that names it."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import pytest
import tensorflow as tf

from tf2_engine import OPTIMIZERS, SGD, TPUEmbedding, errors

emb = tf.tpu.experimental.embedding

TABLE = {
    "vocabulary_size",
    "dim",
    "initializer",
    "optimizer",
    "combiner",
    "name",
    "quantization_config",
    "layout",
    "dtype",
}
FEATURE = {
    "table",
    "max_sequence_length",
    "output_shape",
    "name",
    # Of serving alone: what `cpu_embedding_lookup` does with it is in test_serving.py.
    "validate_weights_and_indices",
}
RENAMED = {"clipvalue": ("clip_gradient_min", "clip_gradient_max")}
NEWER = {"layout", "dtype"}
"""What TensorFlow 2.15 does not have."""


def engine_of(table: Any) -> TPUEmbedding:
    return TPUEmbedding({"a": emb.FeatureConfig(table)}, SGD(0.1))


def test_every_attribute_of_the_configs_is_known() -> None:
    """A TensorFlow that adds a setting to a config fails here, not in training."""
    table = emb.TableConfig(3, 2)

    assert set(vars(table)) in (TABLE, TABLE - NEWER)
    assert set(vars(emb.FeatureConfig(table))) == FEATURE


@pytest.mark.parametrize("name", sorted(set(OPTIMIZERS) & set(dir(emb))))
def test_every_attribute_of_the_optimizers_is_known(name: str) -> None:
    stock = getattr(emb, name)(learning_rate=0.5)
    fields = {field.name for field in dataclasses.fields(OPTIMIZERS[name])}
    read = fields | set(RENAMED) | {"slot_variable_creation_fn"}

    assert set(vars(stock)) - read == set()
    assert all(set(ours) <= fields for ours in RENAMED.values())


def newer(**settings: Any) -> Any:
    """Returns a TableConfig as newer versions have it, on any version."""
    fields = vars(emb.TableConfig(3, 2, name="table"))
    return types.SimpleNamespace(**{**fields, "layout": None, "dtype": tf.float32, **settings})


def feature_of(table: Any) -> Any:
    """Returns a FeatureConfig of a table that stock's own does not take."""
    feature = emb.FeatureConfig(emb.TableConfig(3, 2))
    feature.table = table
    return {"a": feature}


@pytest.mark.parametrize(
    "setting, value, message",
    [
        ("layout", "somewhere", "Table 'table': `layout`='somewhere' is for SparseCores only.*out"),
        ("dtype", tf.int32, "Table 'table': `dtype`=tf.int32 is for SparseCores only.*float32"),
        ("combiner", lambda rows: rows, "Table 'table': `combiner` must be one of sum, mean"),
    ],
)
def test_what_is_for_sparse_cores_is_refused(setting: str, value: Any, message: str) -> None:
    """Settings of newer TableConfigs that cannot be honoured are named, with table and value."""
    with pytest.raises(errors.InvalidSpec, match=message):
        TPUEmbedding(feature_of(newer(**{setting: value})), SGD(0.1))


def test_newer_configs_are_taken() -> None:
    """A newer TableConfig with nothing but neutral settings works."""
    TPUEmbedding(feature_of(newer()), SGD(0.1)).build_for([(2,)])


def test_newer_initializers_are_taken() -> None:
    """An initializer with the signature of RowIdInitializer, of TF 2.21, fills a table."""

    def ids_as_rows(shape: Any, dtype: Any) -> tf.Tensor:
        return tf.range(shape[0], dtype=dtype)[:, None] * tf.ones(shape)

    make = getattr(emb, "RowIdInitializer", lambda: ids_as_rows)
    engine = engine_of(emb.TableConfig(3, 2, initializer=make()))
    engine.build_for([(2,)])

    (table,) = engine.embedding_tables.values()
    assert table.numpy().tolist() == [[0, 0], [1, 1], [2, 2]]
