"""What `keras_rs.layers.DistributedEmbedding` cannot say of a spec, or has to be done beside it.

On TensorFlow's backend the layer takes the FeatureConfigs of TPUEmbeddingV2, and makes one of
them. Read at keras-rs 0.4.0.
"""

from __future__ import annotations

from collections.abc import Iterator

from estimator_bridge.settings.legacy_spec import SPEC, LegacySpec

TARGET = "keras_rs"

_LACKED = "AdagradMomentumParameters"
"""The optimizer that TPUEmbeddingV2 has, and the layer does not."""

_BY_HAND = (
    (
        "strategy",
        "any",
        "TPUStrategy",
        "The layer takes these FeatureConfigs in the scope of a TPUStrategy with SparseCores "
        "alone: a SoftTPUStrategy of tf2_engine on a CPU.",
    ),
    (
        "checkpoints",
        "tables and slots are variables of the model",
        "tf.train.Checkpoint(model=model, tables=layer._tpu_embedding)",
        "The layer tracks neither: a checkpoint of the model alone, and its weights, lack them.",
    ),
)
"""Of each change what it is, before and after, and why."""


def refusals(legacy: LegacySpec) -> Iterator[str]:
    """Yields a line for each table whose optimizer the layer refuses."""
    for table in legacy.tables:
        optimizer = table.optimizer or legacy.optimizer
        if optimizer is not None and optimizer.kind == _LACKED:
            yield (
                f"table {table.name!r}: {_LACKED} (DistributedEmbedding of keras_rs has SGD, "
                'Adagrad, Adam and FTRL): use another one, or target="sparsecore", for '
                "TPUEmbeddingV2 itself"
            )


def changes() -> Iterator[dict[str, str]]:
    """Yields the fields of a `Change` for what a program does beside the layer."""
    for setting, was, now, why in _BY_HAND:
        yield {
            "where": str(SPEC),
            "setting": setting,
            "was": was,
            "now": now,
            "why": why,
            "effect": "by hand",
        }
