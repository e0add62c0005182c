"""What `to_tf2(target="sparsecore")` makes, in the hands of stock's TPUEmbeddingV2."""

from __future__ import annotations

import pytest
import tensorflow as tf

from compat_tests.cases.legacy import Feature, Optimizer
from compat_tests.support import legacy_specs, stock_layouts, translating
from tf2_engine.sparsecore_layout import SparseCores

EACH = ["Adagrad", "AdagradMomentum", "Adam", "Ftrl", "StochasticGradientDescent"]


@pytest.mark.parametrize("kind", EACH)
def test_stock_takes_it(kind: str) -> None:
    """TPUEmbeddingV2 is made of the FeatureConfigs, and builds tables with the slots."""
    momentum = {"momentum": 0.9} if kind == "AdagradMomentum" else {}
    settings = {
        "optimizer": Optimizer(kind, {"learning_rate": 0.1, **momentum}),
        "features": {"f": Feature("t"), "g": Feature("t", max_sequence_length=3)},
    }
    tf2 = legacy_specs.build(translating.case(**settings)).to_tf2(target="sparsecore", batch_size=8)
    with stock_layouts.strategy(SparseCores(2, 2)).scope():
        embedding = tf.tpu.experimental.embedding.TPUEmbeddingV2(tf2.feature_config, **tf2.options)
        embedding.build()

    layout = embedding.embedding_layouts["t"]
    assert (layout.num_sparse_cores, layout.per_sparse_core_batch_size) == (4, 8 // 2)
    assert set(embedding._variables["t"]) == {
        "parameters",
        *tf2.engine_spec.tables[0].optimizer.slot_names,
    }
