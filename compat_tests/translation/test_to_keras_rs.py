"""`to_tf2(target="keras_rs")`: refusals and notes. The layer has its own tests."""

from __future__ import annotations

from typing import Any

import pytest

from compat_tests.cases.legacy import Feature, Optimizer, Table
from compat_tests.support import legacy_specs, translating
from estimator_bridge import errors

SAMPLES = 8


def spec_of(optimizer: Optimizer, **tables: Optimizer | None) -> Any:
    """Returns a spec with tables that have these optimizers, or the spec's, and a feature each."""
    return legacy_specs.build(
        translating.case(
            optimizer=optimizer,
            tables={name: Table(optimizer=each) for name, each in tables.items()},
            features={f"feature_{name}": Feature(name) for name in tables},
        )
    )


MOMENTUM = Optimizer("AdagradMomentum", {"learning_rate": 0.1, "momentum": 0.9})
ADAGRAD = Optimizer("Adagrad", {"learning_rate": 0.1})


def test_the_optimizer_that_the_layer_lacks_is_refused_by_table() -> None:
    """AdagradMomentum, which TPUEmbeddingV2 has, is refused for the tables that have it alone.

    What no SparseCore honours is named in the same error.
    """
    decayed = Optimizer(MOMENTUM.kind, {**MOMENTUM.settings, "weight_decay_factor": 0.5})
    spec = spec_of(MOMENTUM, t=None, u=ADAGRAD, v=decayed)
    with pytest.raises(errors.Untranslatable) as raised:
        spec.to_tf2(target="keras_rs", batch_size=SAMPLES)

    message = str(raised.value)
    assert "DistributedEmbedding of keras_rs on SparseCores cannot honour these" in message
    refused = [line.strip() for line in message.splitlines() if "AdagradMomentumParameters" in line]
    assert [line[:10] for line in refused] == ["table 't':", "table 'v':"]
    assert 'target="sparsecore", for TPUEmbeddingV2 itself' in refused[0]
    assert "weight_decay_factor=0.5" in message
    assert spec_of(MOMENTUM, t=None).to_tf2(target="sparsecore", batch_size=SAMPLES).for_stock


def test_what_is_done_beside_the_layer_is_reported() -> None:
    """To the changes for SparseCores come four by hand, which are of the layer."""
    optimizer = Optimizer("Adagrad", {"learning_rate": 0.1, "use_gradient_accumulation": False})
    keras_rs, sparse_cores = (
        spec_of(optimizer, t=None).to_tf2(target=target, batch_size=SAMPLES)
        for target in ("keras_rs", "sparsecore")
    )
    added = [each for each in keras_rs.report.changes if each not in sparse_cores.report.changes]

    assert set(sparse_cores.report.changes) < set(keras_rs.report.changes)
    assert {each.effect for each in added} == {"by hand"}
    assert [each.setting for each in added] == [
        "strategy",
        "tables are made",
        "checkpoints",
        "values of tables",
    ]
    config = keras_rs.feature_config["feature_t"]
    assert config.output_shape == sparse_cores.feature_config["feature_t"].output_shape == [SAMPLES]
