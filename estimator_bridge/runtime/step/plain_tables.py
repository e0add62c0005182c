"""Prepares features for a model without an engine, as it gets them with one."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.runtime.input.feature_splitting import Notify, split_features
from estimator_bridge.settings import render
from estimator_bridge.settings.detect import notes_of_spec
from estimator_bridge.settings.legacy_spec import LegacySpec
from estimator_bridge.settings.row import DICTS_OFF_TPU, EXPORT
from estimator_bridge.translation.translate import translate
from tf2_engine import tf_compat
from tf2_engine.serving import cpu_embedding_lookup
from tf2_engine.types import Nest, SparseTensor


def look_up_dicts(mode: str, features: Nest, legacy: LegacySpec, notify: Notify) -> dict[str, Nest]:
    """Returns the features of an input_fn with the activations of config dicts in place of ids.

    Activations have the shapes and numbers of use_tpu=True. Each table is one trainable variable
    [vocabulary_size, dimension] float32 of its own name, which is also its key in the checkpoints
    of use_tpu=True: either job can continue with the tables of the other.

    Raises:
        InvalidSpec: a table is trained whose values only an optimizer of the engine computes.
        MissingFeature, InvalidInput, WrongType: as `split_features`.
    """
    if mode == ModeKeys.TRAIN:
        _check_trainable(legacy)
        names = [table.name for table in legacy.tables]
        settings = ", ".join(render.without_effect_on_cpu([*notes_of_spec(legacy)])) or "none"
        notify(render.warning("config_dicts", DICTS_OFF_TPU, tables=names, settings=settings))
    part = split_features(features, legacy, notify)
    spec = translate(legacy, training=False, step=tf.train.get_global_step)
    # The caller must not be in a variable scope: the names are those of checkpoints.
    tables = {
        table.name: tf.get_variable(
            table.name,
            shape=[table.vocabulary_size, table.dim],
            dtype=tf.float32,
            initializer=table.initializer,
            use_resource=True,
        )
        for table in spec.tables
    }
    for name, table in tables.items():
        if table.op.name != name:  # A receiver's placeholder has the name.
            tf_compat.save_as(table, str(name))
    return {**part.features, **cpu_embedding_lookup(part.ids, part.weights, tables, spec)}


def _check_trainable(legacy: LegacySpec) -> None:
    for table in legacy.tables:
        optimizer = table.optimizer or legacy.optimizer
        # Its rows are not weights: they are computed from the ids, not from a gradient.
        if optimizer is not None and optimizer.kind == "FrequencyEstimatorParameters":
            raise errors.InvalidSpec(
                f"Table {table.name!r}: `{optimizer.kind}` computes the rows of its table from "
                "what is looked up, but with use_tpu=False the model's own optimizer trains the "
                "tables. Train with use_tpu=True, which needs no TPU here."
            )


def features_for_export(mode: str, features: Nest, legacy: LegacySpec, notify: Notify) -> Nest:
    """Returns a receiver's features as the model was trained on them.

    Config dicts are looked up. For ordinary columns, which look up sequences as long as they are,
    ids and weights are cut at their table's `max_sequence_length` and padded to it, as the engine
    does: SparseTensors [batch, max_sequence_length, ...]. (Stock exports them uncut.)
    """
    if legacy.form == "dict":
        return look_up_dicts(mode, features, legacy, notify)
    for line in render.warnings(notes_of_spec(legacy), EXPORT):
        notify(line)
    if not isinstance(features, Mapping):
        return features
    cut = {}
    for feature in legacy.features:
        length = feature.max_sequence_length
        for key in (feature.key, feature.weight_key):
            value = features.get(key)
            if isinstance(value, tf.RaggedTensor):
                value = value.to_sparse()
            if length and isinstance(value, tf.SparseTensor):
                cut[key] = _cut(value, length)
    return {**features, **cut}


def _cut(value: SparseTensor, length: int) -> SparseTensor:
    kept = tf.sparse.retain(value, value.indices[:, 1] < length)
    shape = value.dense_shape
    return tf.SparseTensor(
        kept.indices, kept.values, tf.concat([shape[:1], [length], shape[2:]], 0)
    )
