"""Checks a spec for `keras_rs.layers.DistributedEmbedding`, and lists what the program must add.

On the TensorFlow backend, the layer accepts FeatureConfigs of TPUEmbeddingV2 and creates a
TPUEmbeddingV2 itself. Tested with keras-rs 0.4.0.
"""

from __future__ import annotations

from collections.abc import Iterator

from estimator_bridge.settings.legacy_spec import SPEC, LegacySpec

TARGET = "keras_rs"
LAYER = "DistributedEmbedding of keras_rs"

_LACKED = "AdagradMomentumParameters"
"""The optimizer that TPUEmbeddingV2 supports but the layer does not."""

_BY_HAND = (
    (
        "strategy",
        "any, or none",
        "TPUStrategy",
        "The layer takes these FeatureConfigs only with the TensorFlow backend and under a "
        "TPUStrategy with SparseCores, which on a CPU is a SoftTPUStrategy of tf2_engine.",
    ),
    (
        "tables are made",
        "by the first batch",
        "layer.build(dict.fromkeys(tf2.feature_config, ())) in the strategy's scope",
        "A first call in a tf.function, such as fit's, makes the tables in its graph, where "
        "nothing can read or save them.",
    ),
    (
        "checkpoints",
        "tables and slots are variables of the model",
        "tf.train.Checkpoint(model=model, tables=layer._tpu_embedding)",
        "The layer tracks neither, so a checkpoint of the model, save_weights and a .keras file "
        "lack them; convert and inspect read the checkpoint that is written here.",
    ),
    (
        "values of tables",
        "variables of the estimator",
        "checkpoints, and convert",
        "layer.get_embedding_tables() fails for tables that share a stack.",
    ),
)
"""Changes that the user makes by hand: setting, old value, new value, and reason."""


def refusals(legacy: LegacySpec) -> Iterator[str]:
    for table in legacy.tables:
        optimizer = table.optimizer or legacy.optimizer
        if optimizer is not None and optimizer.kind == _LACKED:
            yield (
                f"table {table.name!r}: {_LACKED} (the layer has SGD, Adagrad, Adam and FTRL): "
                'use another optimizer, or target="sparsecore", for TPUEmbeddingV2 itself'
            )


def changes() -> Iterator[dict[str, str]]:
    for each in _BY_HAND:
        fields = dict(zip(("setting", "was", "now", "why"), each, strict=True))
        yield {"where": str(SPEC), **fields, "effect": "by hand"}
