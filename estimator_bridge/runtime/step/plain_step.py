"""Builds steps without an engine: tables are ordinary variables, as in a plain Estimator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.runtime.input.feature_splitting import Notify, split_features
from estimator_bridge.runtime.input.feeding import read, warn_if_endless
from estimator_bridge.runtime.program_types import CallModel, InputBatch, ReadInput
from estimator_bridge.runtime.step import model_step
from estimator_bridge.runtime.step.model_step import EvalMetricOp, ModelStep
from estimator_bridge.settings import render
from estimator_bridge.settings.catalogue import notes_of_spec
from estimator_bridge.settings.legacy_spec import LegacySpec
from estimator_bridge.settings.row import DICTS_OFF_TPU, EXPORT
from estimator_bridge.translation.translate import translate
from tf2_engine import soft_tpu, tf_compat
from tf2_engine.preprocessing.raw_features import cut_sequences
from tf2_engine.serving import cpu_embedding_lookup
from tf2_engine.types import Nest, Op, Strategy


def build_plain_step(
    mode: str, input_fn: ReadInput, model_fn: CallModel, strategy: Strategy | None
) -> ModelStep:
    def trace(batch: InputBatch) -> ModelStep:
        spec = model_fn(*batch)
        model_step.check_spec(mode, spec)
        chief_hooks = getattr(spec, "training_chief_hooks", None) or ()
        step = model_step.step_of_specs(mode, [spec])
        return dataclasses.replace(step, chief_hooks=tuple(chief_hooks))

    if strategy is None:
        ((features, labels),), hooks = read(input_fn, 1)
        if mode == ModeKeys.PREDICT:
            warn_if_endless(features)
        step = trace((features, None if mode == ModeKeys.PREDICT else labels))
    elif isinstance(strategy, soft_tpu.SoftTPUStrategy):
        raise errors.InvalidInput(
            f"`RunConfig`: {strategy!r} works only in a TPUEstimator with use_tpu=True."
        )
    else:
        count = strategy.num_replicas_in_sync
        batches, hooks = read(input_fn, count, f"Under a strategy of {count} replicas")
        step = _replicated(mode, batches, trace, strategy)
    return dataclasses.replace(step, input_hooks=tuple(hooks))


def _replicated(
    mode: str,
    batches: list[InputBatch],
    trace: Callable[[InputBatch], ModelStep],
    strategy: Strategy,
) -> ModelStep:
    graph = tf.get_default_graph()
    restore_keras_names = tf_compat.remember_keras_names(graph)
    steps: list[ModelStep] = []
    mean_losses: list[EvalMetricOp] = []

    def replica(number: int) -> tuple[()]:
        # Replicas are traced one after another, each up to its merge calls.
        if number:
            restore_keras_names()
        step = trace(batches[number])
        if mode == ModeKeys.EVAL:
            step = dataclasses.replace(step, eval_metric_ops=model_step.metrics_of(step))
            # A metric created in a replica's context covers all replicas.
            mean_losses.append(tf.metrics.mean(step.loss))
        steps.append(step)
        return ()

    numbers = [(number,) for number in range(len(batches))]
    tf_compat.call_for_each_replica(strategy, replica, numbers)
    loss = tf.add_n([tf.convert_to_tensor(step.loss) for step in steps])
    if tf_compat.is_loss_scaled(graph):
        loss /= len(batches)
    step = dataclasses.replace(steps[0], loss=loss)
    if mode == ModeKeys.TRAIN:
        return dataclasses.replace(step, train_op=_group([step.train_op for step in steps]))
    metrics = {
        name: _over_replicas([step.eval_metric_ops[name] for step in steps])
        for name in step.eval_metric_ops
    }
    return dataclasses.replace(step, eval_metric_ops=metrics, mean_loss=_over_replicas(mean_losses))


def _over_replicas(metrics: list[EvalMetricOp]) -> EvalMetricOp:
    return metrics[0][0], _group([update for _, update in metrics])


def _group(ops: list[Op]) -> Op:
    strategy = tf.distribute.get_strategy()
    return tf.group(*[part for op in ops for part in strategy.experimental_local_results(op)])


def look_up_dicts(mode: str, features: Nest, legacy: LegacySpec, notify: Notify) -> dict[str, Nest]:
    """Replaces ids by activations, for the features in the spec's config dicts.

    Each table is a trainable float32 variable, [vocabulary_size, dimension], with the same name as
    under use_tpu=True, so that jobs can continue from each other's checkpoints.
    """
    if mode == ModeKeys.TRAIN:
        _check_trainable(legacy)
        names = [table.name for table in legacy.tables]
        settings = ", ".join(render.without_effect_on_cpu([*notes_of_spec(legacy)])) or "none"
        notify(render.warning("config_dicts", DICTS_OFF_TPU, tables=names, settings=settings))
    part = split_features(features, legacy, notify)
    spec = translate(legacy, training=False, step=tf.train.get_global_step)
    # No variable scope may be open here, because these names are checkpoint keys.
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
        if table.op.name != name:  # a placeholder of a serving receiver already has the name
            tf_compat.save_as(table, str(name))
    return {**part.features, **cpu_embedding_lookup(part.ids, part.weights, tables, spec)}


def _check_trainable(legacy: LegacySpec) -> None:
    for table in legacy.tables:
        optimizer = table.optimizer or legacy.optimizer
        # The rows are not weights: they are computed from the ids, not from a gradient.
        if optimizer is not None and optimizer.kind == "FrequencyEstimatorParameters":
            raise errors.InvalidSpec(
                f"Table {table.name!r}: `{optimizer.kind}` computes the rows of its table from "
                "the ids that are looked up, but with use_tpu=False the model's own optimizer "
                "trains the tables. Train with use_tpu=True, which needs no TPU here."
            )


def features_for_export(mode: str, features: Nest, legacy: LegacySpec, notify: Notify) -> Nest:
    """Looks up a receiver's features if the spec has config dicts.

    If the spec has columns and quirks="documented", sequences are cut as in training, to
    SparseTensors [batch, max_sequence_length, ...].
    """
    if legacy.form == "dict":
        notify(render.warning("config_dicts", EXPORT, where=""))
        return look_up_dicts(mode, features, legacy, notify)
    for line in render.warnings(notes_of_spec(legacy), EXPORT, legacy=legacy):
        notify(line)
    if legacy.quirks == "stock" or not isinstance(features, Mapping):
        return features
    cut = {}
    for feature in legacy.features:
        length = feature.max_sequence_length
        for key in (feature.key, feature.weight_key):
            if length and key in features:
                cut[key] = cut_sequences(features[key], length)
    return {**features, **cut}
