"""Limits of ids on SparseCores are enforced, and those that `audit` proposes are sufficient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf2_engine
from compat_tests.support.legacy_specs import OURS
from estimator_bridge.audit import of_sparse_cores
from tf2_engine import EngineSpec, FeatureSpec, SparseCoreLimits, TableSpec, errors, training
from tf2_engine.backends import SparseCoreDriver
from tf2_engine.keras import TPUEmbedding
from tf2_engine.soft_tpu import SoftTPUStrategy
from tf2_engine.sparsecore_layout import SparseCores, StackableTable, table_layouts
from tf2_engine.sparsecore_limits import Lookup, needs

SAMPLES, IDS = 8, 300
"""Of each sample all ids are multiples of 4, and so for one SparseCore of four."""

ROWS = 4 * IDS


def batch() -> Any:
    """Returns ids of which one partition gets more than stock has room for."""
    return tf.sparse.from_dense(np.tile(np.arange(1, IDS + 1) * 4 % ROWS + 4, (SAMPLES, 1)))


def proposed() -> dict[str, Any]:
    """Returns the limits that `audit --sample` proposes for such a batch."""
    layouts = table_layouts([StackableTable("words", ROWS + 8, 4, "group")], SparseCores(1, 4))
    ids = batch()
    lookup = Lookup("title", "words", SAMPLES, ids.indices[:, 0].numpy(), ids.values.numpy())
    return of_sparse_cores.limits(needs(layouts, [lookup]))


def model_fn(features: Any, mode: str) -> Any:
    """A model whose loss is the mean of what was looked up."""
    loss = tf.reduce_mean(features["title"]) * tf.compat.v1.get_variable("scale", [])
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    step = tf.compat.v1.train.get_global_step()
    train_op = training.minimize(optimizer, loss, global_step=step)
    return training.ModelSpec(mode, loss=loss, train_op=train_op)


def trainer(folder: Any, limits: Any) -> training.Trainer:
    """Returns a trainer on one core of four SparseCores."""
    spec = OURS.EmbeddingConfigSpec(
        table_to_config_dict={"words": OURS.TableConfig(ROWS + 8, 4, combiner="sum")},
        feature_to_config_dict={"title": OURS.FeatureConfig("words")},
        optimization_parameters=OURS.AdagradParameters(0.1),
    )
    with SoftTPUStrategy(1, hardware="sparsecore").scope():
        return training.Trainer(
            model_fn,
            str(folder),
            embedding_config_spec=spec,
            train_batch_size=SAMPLES,
            arithmetic="sparsecore",
            sparse_core_limits=limits,
        )


def input_fn() -> Any:
    return tf.data.Dataset.from_tensors({"title": batch()}).repeat()


@pytest.mark.full
def test_a_trainer_takes_what_audit_proposes(tmp_path: Any) -> None:
    """Stock's limits end the step with an error; those of the audit, as they are, do not."""
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"max ids per sparse core.*256"):
        trainer(tmp_path / "stock", None).train(input_fn, steps=1)

    for kind in (SparseCoreLimits, tf.tpu.experimental.embedding.SparseCoreEmbeddingConfig):
        of_audit = trainer(tmp_path / kind.__name__, kind(**proposed()))
        assert of_audit.train(input_fn, steps=2).step.numpy() == 2


def test_a_keras_layer_has_limits() -> None:
    limits = SparseCoreLimits(**proposed())
    with SoftTPUStrategy(1, hardware="sparsecore").scope():
        table = tf.tpu.experimental.embedding.TableConfig(ROWS, 4, name="words")
        feature = tf.tpu.experimental.embedding.FeatureConfig(table, name="title")
        layer = TPUEmbedding(
            {"title": feature},
            tf2_engine.SGD(0.1),
            batch_size=SAMPLES,
            arithmetic="sparsecore",
            sparse_core_limits=limits,
        )
        copy = type(layer).from_config(layer.get_config())

    for each in (layer, copy):
        assert each.arithmetic == "sparsecore"
        assert each.embedding._driver._limits == limits


def test_a_limit_of_a_table_that_is_stacked_is_refused() -> None:
    """Stock would not look at it; the message has the names of the stacks."""
    optimizer = tf2_engine.SGD(0.1)
    spec = EngineSpec(
        (TableSpec("a", 10, 4, "sum", optimizer), TableSpec("b", 10, 4, "sum", optimizer)),
        (FeatureSpec("one", "a", output_shape=(4,)), FeatureSpec("two", "b", output_shape=(4,))),
    )
    with SoftTPUStrategy(1, hardware="sparsecore").scope():
        for name in ("max_ids_per_table", "max_unique_ids_per_table"):
            driver = SparseCoreDriver(SparseCoreLimits(**{name: {"a": 512}}))
            with pytest.raises(errors.InvalidSpec, match=f"{name}.* 'a', but the stacks are 'a_b'"):
                tf2_engine.TPUEmbedding(spec, driver=driver).build()
        apart = SparseCoreLimits({"a": 512}, disable_table_stacking=True)
        tf2_engine.TPUEmbedding(spec, driver=SparseCoreDriver(apart)).build()
