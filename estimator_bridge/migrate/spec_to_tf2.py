"""`EmbeddingConfigSpec.to_tf2()`: a legacy spec as the objects of TensorFlow 2."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.migrate.config_report import Change, Report
from estimator_bridge.migrate.read_inputs import inputs_of_columns, inputs_of_dicts
from estimator_bridge.migrate.stock_optimizers import stock_optimizer
from estimator_bridge.translation.legacy_spec import LegacyOptimizer, LegacySpec, LegacyTable
from estimator_bridge.translation.read_spec import read_spec
from estimator_bridge.translation.translate import translate
from tf2_engine.preprocessing import Preprocessing
from tf2_engine.specs import EngineSpec, TableSpec

_SPEC = "spec"


@dataclasses.dataclass(frozen=True)
class TF2Embedding:
    """A legacy spec as TensorFlow 2 has it.

        tf2 = spec.to_tf2()
        embedding = tf2_engine.TPUEmbedding(tf2.feature_config, **tf2.options)
        ids, weights, lengths = tf2.preprocessing(features)

    Attributes:
        feature_config: a FeatureConfig by feature, for `tf2_engine.TPUEmbedding` and the Keras
            layer; every table has its own optimizer. Stock's TPUEmbedding takes it if
            `for_stock`.
        options: further arguments of `TPUEmbedding`.
        engine_spec: all of it for `tf2_engine.TPUEmbedding`, also what no FeatureConfig can say:
            mod partitioning, hot ids, lookup statistics.
        preprocessing: makes ids and weights of what the legacy input function returns; None where
            a column is of an unknown kind, which the report says.
        step: the global step that learning-rate functions are called with: count it up.
        gradient_multiplier: returns the number by which the gradients of all activations are to
            be multiplied; None if there is none.
        for_stock: whether all optimizers are stock's.
        report: what was changed, and why.
    """

    feature_config: dict[str, Any]
    options: dict[str, Any]
    engine_spec: EngineSpec
    preprocessing: Preprocessing | None
    step: Any
    gradient_multiplier: Callable[[], Any] | None
    for_stock: bool
    report: Report


def to_tf2(spec: Any, *, step: Any = None, quirks: str | None = None) -> TF2Embedding:
    """Translates a legacy spec, stock's or ours, to TensorFlow 2.

    What stock's public API can express is of its classes, the rest of this project's.

    Args:
        step: the global step: a variable such as `optimizer.iterations`, or a callable without
            arguments that returns it; None makes a variable where the spec needs one.
        quirks: see `EmbeddingConfigSpec`.

    Raises:
        Untranslatable, InvalidSpec, WrongType: as when the spec is used on a TPU.
    """
    legacy = read_spec(spec, quirks)
    if step is None and _needs_step(legacy):
        step = tf.Variable(0, trainable=False, dtype=tf.int64, name="global_step")
    read_step: Callable[[], Any] = step if callable(step) else lambda: step
    engine = translate(
        legacy, training=True, batch_size=None, num_cores=1, step=read_step
    ).engine_spec
    changes = [*_of_spec(legacy)]
    made: dict[Any, tuple[Any, str | None]] = {}
    tables = {}
    for table in engine.tables:
        old = legacy.table(str(table.name))
        if table.optimizer not in made:
            assert table.optimizer is not None
            made[table.optimizer] = stock_optimizer(table.optimizer)
        optimizer, reason = made[table.optimizer]
        changes += _of_table(old, table, legacy, reason)
        tables[table.name] = tf.tpu.experimental.embedding.TableConfig(
            vocabulary_size=table.vocabulary_size,
            dim=table.dim,
            initializer=table.initializer,
            optimizer=optimizer,
            combiner=table.combiner,
            name=table.name,
        )
    feature_config = {
        feature.name: tf.tpu.experimental.embedding.FeatureConfig(
            table=tables[feature.table],
            max_sequence_length=feature.max_sequence_length,
            name=feature.name,
        )
        for feature in engine.features
    }
    preprocessing, refused = _preprocessing(spec, legacy)
    changes += [*_of_features(legacy), *refused]
    multiplier = legacy.gradient_multiplier_fn
    return TF2Embedding(
        feature_config=feature_config,
        options={"pipeline_execution_with_tensor_core": legacy.pipeline_execution_with_tensor_core},
        engine_spec=engine,
        preprocessing=preprocessing,
        step=step,
        gradient_multiplier=None if multiplier is None else lambda: multiplier(read_step()),
        for_stock=all(reason is None for _, reason in made.values()),
        report=Report(tuple(dict.fromkeys(changes))),
    )


def _needs_step(legacy: LegacySpec) -> bool:
    return legacy.gradient_multiplier_fn is not None or any(
        table.learning_rate_fn is not None for table in legacy.tables
    )


def _preprocessing(spec: Any, legacy: LegacySpec) -> tuple[Preprocessing | None, list[Change]]:
    if legacy.form == "dict":
        return Preprocessing(inputs_of_dicts(legacy)), []
    try:
        return Preprocessing(inputs_of_columns(spec.feature_columns)), []
    except errors.Untranslatable as error:
        return None, [Change(_SPEC, "feature_columns", "columns", "", str(error), "by hand")]


def _of_spec(legacy: LegacySpec) -> Iterator[Change]:
    """Yields what becomes of the settings of the spec itself."""
    if legacy.optimizer is not None:
        yield Change(
            _SPEC,
            "optimization_parameters",
            legacy.optimizer.kind,
            "TableConfig.optimizer",
            "Every table has its optimizer, with every setting written out: defaults differ.",
            "form",
        )
    if legacy.clipping_limit is not None:
        honoured = legacy.quirks == "documented"
        yield Change(
            _SPEC,
            "clipping_limit",
            str(legacy.clipping_limit),
            "clip_weight_min, clip_weight_max" if honoured else "",
            "Documented, but stock ignores it; "
            + ('quirks="stock" does so, too.' if honoured else 'quirks="documented" honours it.'),
            "numbers" if honoured else "left out",
        )
    if legacy.gradient_multiplier_fn is not None:
        yield Change(
            _SPEC,
            "experimental_gradient_multiplier_fn",
            _name(legacy.gradient_multiplier_fn),
            "gradient_multiplier()",
            "No TPUEmbedding has it: multiply the gradients of all activations before "
            "`apply_gradients`.",
            "by hand",
        )
    if legacy.partition_strategy != "div":
        yield Change(
            _SPEC,
            "partition_strategy",
            repr(legacy.partition_strategy),
            "engine_spec",
            "Stock's TPUEmbedding knows 'div' alone, and a feature_config cannot say it. Which "
            "host holds a row changes no number; `convert` reorders old checkpoints.",
            "ours",
        )
    if legacy.profile_data_directory is not None:
        yield Change(
            _SPEC,
            "profile_data_directory",
            repr(legacy.profile_data_directory),
            "engine_spec",
            "Stock's TPUEmbedding of TensorFlow 2 has no such setting.",
            "ours",
        )
    for column in legacy.tensor_core_columns:
        yield Change(
            f"feature {column.key!r}",
            "embedding_lookup_device",
            "'tpu_tensor_core'",
            "tf.keras.layers.Embedding",
            "Its table is an ordinary variable of the model, which the model's optimizer trains.",
            "by hand",
        )


def _of_table(
    old: LegacyTable, new: TableSpec, legacy: LegacySpec, reason: str | None
) -> Iterator[Change]:
    """Yields what becomes of the settings of a table.

    Args:
        reason: why its optimizer is not stock's; None if it is.
    """
    where = f"table {old.name!r}"
    optimizer = old.optimizer or legacy.optimizer
    assert optimizer is not None  # or it would not have been translated
    assert new.optimizer is not None
    kind = type(new.optimizer).__name__
    if reason is not None:
        yield Change(
            where,
            "optimization_parameters",
            optimizer.kind,
            f"tf2_engine.{kind}",
            f"{reason}.",
            "ours",
        )
    yield from _unset(where, old, optimizer)
    if old.learning_rate:
        yield Change(
            where,
            "learning_rate",
            str(old.learning_rate),
            f"{kind}.learning_rate",
            "TensorFlow 2 has rates in optimizers only, so the table has one of its own.",
            "form",
        )
    elif old.learning_rate_fn is not None:
        yield Change(
            where,
            "learning_rate_fn",
            _name(old.learning_rate_fn),
            f"{kind}.learning_rate, a callable without arguments",
            "TensorFlow 2 calls it without the step; it reads `step`, which you count up.",
            "by hand",
        )
    if old.combiner is None:
        yield Change(
            where,
            "combiner",
            "None",
            "'sum'",
            "TensorFlow 2 has no None. A TPU adds the rows of a sample then; off a TPU stock takes "
            "their mean.",
            "numbers",
        )
    if old.hot_id_replication:
        yield Change(
            where,
            "hot_id_replication",
            "True",
            "engine_spec",
            "A TableConfig cannot say it; it changes no number.",
            "ours",
        )


def _unset(where: str, old: LegacyTable, optimizer: LegacyOptimizer) -> Iterator[Change]:
    if old.learning_rate is not None and not old.learning_rate:
        yield Change(
            where,
            "learning_rate",
            str(old.learning_rate),
            f"{optimizer.settings['learning_rate']}, the optimizer's",
            "Stock takes 0 for unset.",
            "form",
        )
    decay = optimizer.settings.get("weight_decay_factor")
    if decay is not None and not decay:
        yield Change(
            where, "weight_decay_factor", str(decay), "", "Stock takes 0 for unset.", "left out"
        )


def _of_features(legacy: LegacySpec) -> Iterator[Change]:
    """Yields what becomes of the settings of features."""
    for feature in legacy.features:
        where = f"feature {feature.key!r}"
        if feature.weight_key is not None:
            yield Change(
                where,
                "weight_key",
                repr(feature.weight_key),
                "weights of `enqueue`",
                "TensorFlow 2 takes weights beside ids, not among the features; `preprocessing` "
                "returns both.",
                "form",
            )
        if feature.max_sequence_length:
            yield Change(
                where,
                "max_sequence_length",
                str(feature.max_sequence_length),
                "FeatureConfig.max_sequence_length",
                "TensorFlow 2 returns no lengths beside the activations; `preprocessing` does.",
                "form",
            )
    yield Change(
        "features",
        "dense ids",
        "0 is left out where there is a combiner",
        "-1 is left out",
        "Stock drops id 0 of dense tensors on a TPU; `preprocessing` drops -1 and '', as feature "
        "columns do off a TPU.",
        "numbers",
    )
    for note in legacy.notes:
        where, _, why = note.partition(": ")
        if "with use_tpu=False only" not in why:
            continue
        yield Change(
            where[:1].lower() + where[1:],
            "categorical_column",
            "ids of the input_fn, as they are",
            "preprocessing",
            "On a TPU the legacy column leaves values as they are; `preprocessing` transforms them "
            "as off a TPU. Hand it what comes before your own transformation, or hand the ids to "
            "the engine directly.",
            "numbers",
        )


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__name__)
