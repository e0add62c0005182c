"""Looks config dicts up with use_tpu=False: their tables are trainable variables."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.runtime.input.feature_splitting import Notify, split_features
from estimator_bridge.settings import render
from estimator_bridge.settings.detect import notes_of_spec
from estimator_bridge.settings.legacy_spec import LegacySpec
from estimator_bridge.settings.row import DICTS_OFF_TPU
from estimator_bridge.translation.translate import translate
from tf2_engine import tf_compat
from tf2_engine.serving import cpu_embedding_lookup
from tf2_engine.types import Nest


def look_up_dicts(mode: str, features: Nest, legacy: LegacySpec, notify: Notify) -> dict[str, Nest]:
    """Returns the features of a batch with activations in the place of ids.

    Activations have the shapes and numbers of use_tpu=True. Each table is one variable
    [vocabulary_size, dimension] float32 of its own name, which is also its key in the checkpoints
    of use_tpu=True: either job can continue with the tables of the other.

    Args:
        features: those of the input_fn.
        notify: called with the lines that deserve a warning.

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


# Their rows are not weights: they are computed from the ids looked up, not from a gradient.
_WITHOUT_GRADIENTS = ("FrequencyEstimatorParameters",)


def _check_trainable(legacy: LegacySpec) -> None:
    for table in legacy.tables:
        optimizer = table.optimizer or legacy.optimizer
        if optimizer is not None and optimizer.kind in _WITHOUT_GRADIENTS:
            raise errors.InvalidSpec(
                f"Table {table.name!r}: `{optimizer.kind}` computes the rows of its table from "
                "what is looked up, but with use_tpu=False the model's own optimizer trains the "
                "tables. Train with use_tpu=True, which needs no TPU here."
            )
