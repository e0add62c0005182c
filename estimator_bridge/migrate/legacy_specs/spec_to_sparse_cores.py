"""Translates a legacy spec for stock's TPUEmbeddingV2 on SparseCores, or says why it cannot."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf

from estimator_bridge.migrate.legacy_specs import spec_to_keras_rs
from estimator_bridge.settings import render
from estimator_bridge.settings.catalogue import ROWS, notes_of_spec
from estimator_bridge.settings.legacy_spec import LegacySpec
from estimator_bridge.translation import on_sparse_cores
from tf2_engine.preprocessing import Preprocessing
from tf2_engine.preprocessing.module import SparseCorePreprocessing
from tf2_engine.types import Object

TARGET = "sparsecore"

REFUSED = (*on_sparse_cores.RAISING, "adam_not_lazy", "weight_limits", "gradient_limits")
"""Rows of the catalogue whose settings would change results. A spec with one is refused."""

# These rows need no remark: the new objects contain the settings, or the input decides.
_CARRIED = ("optimization_parameters", "partition_strategy", "sequence", "sparse_core")


def check(legacy: LegacySpec, target: str) -> None:
    if target == spec_to_keras_rs.TARGET:
        name, besides = spec_to_keras_rs.LAYER, spec_to_keras_rs.refusals(legacy)
        on_sparse_cores.check(legacy, REFUSED, besides, target=f"{name} on SparseCores")
    else:
        on_sparse_cores.check(legacy, REFUSED)


def changes(legacy: LegacySpec, target: str) -> Iterator[dict[str, str]]:
    if target == spec_to_keras_rs.TARGET:
        yield from spec_to_keras_rs.changes()
    for note in notes_of_spec(legacy):
        row = ROWS[note.rule]
        if row.sparse_core.outcome in ("ignored", "other") and note.rule not in _CARRIED:
            effect, way_out = row.sparse_core.effect, row.sparse_core.way_out
            yield {
                "where": str(note.where),
                "setting": row.setting or note.rule,
                "was": render.shown(note) or "as it is",
                "now": "",
                "why": f"On SparseCores: {effect}{f'; {way_out}' if way_out else ''}.",
                "effect": "numbers" if row.sparse_core.outcome == "ignored" else "by hand",
            }


def feature_config(
    config: dict[str, Object], legacy: LegacySpec, samples: int
) -> dict[str, Object]:
    """Builds FeatureConfigs with output shapes for `samples` samples on each core."""
    for feature in config.values():
        optimizer = feature.table.optimizer
        # TPUEmbeddingV2 accepts only None for these two. `check` has refused weight decay.
        optimizer.weight_decay_factor = None
        optimizer.multiply_weight_decay_factor_by_learning_rate = None
    lengths = {feature.key: feature.max_sequence_length for feature in legacy.features}
    return {
        name: tf.tpu.experimental.embedding.FeatureConfig(
            table=feature.table,
            output_shape=[samples, lengths[name]] if lengths[name] else [samples],
            name=name,
        )
        for name, feature in config.items()
    }


def preprocessing(general: Preprocessing | None, legacy: LegacySpec) -> Preprocessing | None:
    lengths = {f.key: f.max_sequence_length for f in legacy.features if f.max_sequence_length}
    return None if general is None else SparseCorePreprocessing(general.columns, lengths)
