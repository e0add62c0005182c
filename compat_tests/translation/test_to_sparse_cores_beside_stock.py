"""Stock's TPUEmbeddingV2 accepts and trains with the result of `to_tf2(target="sparsecore")`."""

from __future__ import annotations

import pytest
import tensorflow as tf

from compat_tests.cases.legacy import Feature, Optimizer, Table
from compat_tests.support import legacy_specs, stock_layouts, translating
from estimator_bridge.audit.of_tables import layouts_of_spec
from estimator_bridge.translation.read_spec import read_spec
from tf2_engine import sparsecore_layout
from tf2_engine.sparsecore_layout import SparseCores

EACH = ["Adagrad", "AdagradMomentum", "Adam", "Ftrl", "StochasticGradientDescent"]


@pytest.mark.parametrize("kind", EACH)
def test_stock_takes_it(kind: str) -> None:
    """TPUEmbeddingV2 is made of the FeatureConfigs, and builds the stacks that an audit tells."""
    momentum = {"momentum": 0.9} if kind == "AdagradMomentum" else {}
    settings = {
        "optimizer": Optimizer(kind, {"learning_rate": 0.1, **momentum}),
        "tables": {"t": Table(), "u": Table(), "v": Table(learning_rate=0.5)},
        "features": {
            "f": Feature("t"),
            "g": Feature("u", max_sequence_length=3),
            "h": Feature("v"),
        },
    }
    spec = legacy_specs.build(translating.case(**settings))
    tf2 = spec.to_tf2(target="sparsecore", batch_size=8)
    with stock_layouts.strategy(SparseCores(2, 2)).scope():
        embedding = tf.tpu.experimental.embedding.TPUEmbeddingV2(tf2.feature_config, **tf2.options)
        embedding.build()

    protos = stock_layouts.TableLayouts(tables=embedding.embedding_layouts.values())
    layouts = layouts_of_spec(spec, read_spec(spec), SparseCores(2, 2), batch_size=16)
    assert sparsecore_layout.parsed(protos.SerializeToString()) == layouts
    assert {layout.stack for layout in layouts.values()} == {"t_u", "v"}
    slots = tf2.engine_spec.tables[0].optimizer.slot_names
    assert set(embedding._variables["t_u"]) == {"parameters", *slots}
