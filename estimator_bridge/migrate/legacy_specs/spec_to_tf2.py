"""`EmbeddingConfigSpec.to_tf2()`: translates a legacy spec to TensorFlow 2, with a report."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.migrate.legacy_specs import spec_to_keras_rs, spec_to_sparse_cores
from estimator_bridge.migrate.legacy_specs.read_inputs import inputs_of_columns, inputs_of_ids
from estimator_bridge.settings import render
from estimator_bridge.settings.catalogue import ROWS, notes_of_spec
from estimator_bridge.settings.legacy_spec import SPEC, LegacySpec, Note, Place, SourceText
from estimator_bridge.translation.read_spec import read_spec
from estimator_bridge.translation.translate import translate
from tf2_engine import specs
from tf2_engine.optimizers import Optimizer
from tf2_engine.optimizers.optimizer import KEEPING
from tf2_engine.preprocessing import Preprocessing
from tf2_engine.types import Object, TensorLike

_NAMESPACE = "tf.tpu.experimental.embedding"
_TARGETS = (spec_to_sparse_cores.TARGET, spec_to_keras_rs.TARGET)

EFFECTS = {
    "form": "says the same in other words",
    "ours": "stock's classes for TensorFlow 2 cannot express it; tf2_engine's can",
    "numbers": "gives different numbers than before",
    "by hand": "is yours to write",
    "left out": "has no counterpart, but affects no number",
}


@dataclasses.dataclass(frozen=True)
class Change:
    """One setting that differs in TensorFlow 2, or does not exist there.

    Attributes:
        where: the owner of the setting, such as "table 'words'".
        setting: the legacy name of the setting.
        was: the old value as source text.
        now: the new value as source text; empty if nothing replaces the setting.
        why: the reason for the change, a sentence.
        effect: one of `EFFECTS`.
    """

    where: str
    setting: str
    was: str
    now: str
    why: str
    effect: str

    def __str__(self) -> str:
        now = f" -> {self.now}" if self.now else ""
        sign = ": " if " " in self.setting else "="
        return f"[{self.effect}] {self.where}: {self.setting}{sign}{self.was}{now}. {self.why}"


@dataclasses.dataclass(frozen=True)
class Report:
    """All changes that a migration makes to a spec, in the order of the spec."""

    changes: tuple[Change, ...]

    def lines(self) -> Iterator[str]:
        yield from map(str, self.changes)

    def as_dict(self) -> dict[str, Object]:
        return {"changes": [dataclasses.asdict(change) for change in self.changes]}

    def __str__(self) -> str:
        return "\n".join(self.lines()) or "Nothing was changed."


@dataclasses.dataclass(frozen=True)
class TF2Embedding:
    """The TensorFlow 2 objects of a legacy spec.

        tf2 = spec.to_tf2()
        embedding = tf2_engine.TPUEmbedding(tf2.feature_config, **tf2.options)
        ids, weights, lengths = tf2.preprocessing(features)

    Attributes:
        feature_config: a dict from features to FeatureConfigs, for `tf2_engine.TPUEmbedding` and
            the Keras layer. Every table has its own optimizer. Stock's TPUEmbedding also takes the
            dict if `for_stock` is true.
        options: the other arguments of `TPUEmbedding`, by name.
        engine_spec: the whole spec for `tf2_engine.TPUEmbedding`, including settings that a
            FeatureConfig cannot express: mod partitioning, hot ids, lookup statistics.
        preprocessing: makes ids and weights from the output of the legacy input function. None if a
            column is of an unknown kind; the report then names the column.
        preprocessing_of_ids: like `preprocessing`, but for input functions that already return ids,
            as on a TPU.
        step: the global step passed to learning-rate functions; the program must increment it.
        gradient_multiplier: returns the factor to apply to the gradients of all activations; None
            if there is no factor.
        for_stock: whether all optimizers are objects of stock's classes.
        report: what was changed, and why.
    """

    feature_config: dict[str, Object]
    options: dict[str, Object]
    engine_spec: specs.EngineSpec
    preprocessing: Preprocessing | None
    preprocessing_of_ids: Preprocessing
    step: Object
    gradient_multiplier: Callable[[], TensorLike] | None
    for_stock: bool
    report: Report


class _Optimizer(NamedTuple):
    optimizer: Object
    kind: str
    reason: str | None
    legacy_kind: str
    rate: Object  # the legacy rate


def to_tf2(
    spec: Object,
    *,
    step: Object = None,
    quirks: str | None = None,
    target: str | None = None,
    batch_size: int | None = None,
) -> TF2Embedding:
    """Translates a legacy spec, an object of stock's class or of the bridge's, to TensorFlow 2.

    The result consists of objects of stock's public classes where these exist, and of this
    project's classes otherwise.

    Args:
        step: the global step: a variable such as `optimizer.iterations`, or a callable without
            arguments that returns it. If it is None, a variable is created if the spec needs one.
        quirks: see `EmbeddingConfigSpec`.
        target: "sparsecore" makes objects for stock's TPUEmbeddingV2 on TPUs with SparseCores:
            FeatureConfigs with output shapes, and `preprocessing` that returns ids with a row for
            each activation. "keras_rs" makes the same objects for
            `keras_rs.layers.DistributedEmbedding(tf2.feature_config, **tf2.options)` on the
            TensorFlow backend. This layer uses a TPUEmbeddingV2 internally.
        batch_size: the number of samples on each core; required with a `target`.

    Raises:
        Untranslatable, InvalidSpec, WrongType: the spec cannot be used on a TPU. Untranslatable
            also lists all settings that the `target` lacks.
        InvalidInput: the target is unknown, or `batch_size` is missing.
    """
    legacy = read_spec(spec, quirks)
    if target is not None:
        _check_target(target, batch_size)
        spec_to_sparse_cores.check(legacy, target)
    multiplier = legacy.experimental_gradient_multiplier_fn
    functions = [multiplier, *(table.learning_rate_fn for table in legacy.tables)]
    if step is None and any(function is not None for function in functions):
        step = tf.Variable(0, trainable=False, dtype=tf.int64, name="global_step")
    read_step: Callable[[], TensorLike] = step if callable(step) else lambda: step
    engine = translate(legacy, training=True, step=read_step)
    optimizers = _optimizers(legacy, engine.tables)
    tables = {
        table.name: tf.tpu.experimental.embedding.TableConfig(
            vocabulary_size=table.vocabulary_size,
            dim=table.dim,
            initializer=table.initializer,
            optimizer=optimizers[str(table.name)].optimizer,
            combiner=table.combiner,
            name=table.name,
        )
        for table in engine.tables
    }
    feature_config = {
        feature.name: tf.tpu.experimental.embedding.FeatureConfig(
            table=tables[feature.table],
            max_sequence_length=feature.max_sequence_length,
            name=feature.name,
        )
        for feature in engine.features
    }
    preprocessing, unknown_columns = _preprocessing(spec, legacy)
    translated = TF2Embedding(
        feature_config=feature_config,
        options={"pipeline_execution_with_tensor_core": legacy.pipeline_execution_with_tensor_core},
        engine_spec=engine,
        preprocessing=preprocessing,
        preprocessing_of_ids=Preprocessing(inputs_of_ids(legacy)),
        step=step,
        gradient_multiplier=None if multiplier is None else lambda: multiplier(read_step()),
        for_stock=all(optimizer.reason is None for optimizer in optimizers.values()),
        report=Report(tuple(dict.fromkeys(_changes(legacy, optimizers, unknown_columns)))),
    )
    return (
        translated
        if batch_size is None or target is None
        else _for_target(translated, legacy, target, batch_size)
    )


def _check_target(target: str, batch_size: int | None) -> None:
    if target not in _TARGETS:
        names = ", ".join(map(repr, _TARGETS))
        raise errors.InvalidInput(f"`target` must be {names} or None, got {target!r}.")
    if batch_size is None:
        raise errors.InvalidInput(
            f"target={target!r} needs the `batch_size` of a core, because the FeatureConfigs "
            "of TPUEmbeddingV2 contain the shapes of activations."
        )


def _for_target(
    general: TF2Embedding, legacy: LegacySpec, target: str, batch_size: int
) -> TF2Embedding:
    preprocessing = functools.partial(spec_to_sparse_cores.preprocessing, legacy=legacy)
    of_ids = preprocessing(general.preprocessing_of_ids)
    assert of_ids is not None
    changes = [Change(**each) for each in spec_to_sparse_cores.changes(legacy, target)]
    return dataclasses.replace(
        general,
        feature_config=spec_to_sparse_cores.feature_config(
            general.feature_config, legacy, batch_size
        ),
        preprocessing=preprocessing(general.preprocessing),
        preprocessing_of_ids=of_ids,
        report=Report((*general.report.changes, *dict.fromkeys(changes))),
    )


def _optimizers(legacy: LegacySpec, tables: tuple[specs.TableSpec, ...]) -> dict[str, _Optimizer]:
    optimizer_of = functools.cache(stock_optimizer)
    optimizers = {}
    for table in tables:
        old = legacy.table(str(table.name)).optimizer or legacy.optimizer
        assert table.optimizer is not None and old is not None
        optimizer, reason = optimizer_of(table.optimizer)
        kind, rate = type(table.optimizer).__name__, old.settings["learning_rate"]
        optimizers[str(table.name)] = _Optimizer(optimizer, kind, reason, old.kind, rate)
    return optimizers


def stock_optimizer(optimizer: Optimizer) -> tuple[Object, str | None]:
    """Returns (stock's optimizer, None), or (the engine's, why stock's does not suffice)."""
    name = type(optimizer).__name__
    kind = getattr(tf.tpu.experimental.embedding, name, None)
    if kind is None:
        return optimizer, f"{_NAMESPACE} has no {name}"
    settings = {
        field.name: getattr(optimizer, field.name)
        for field in dataclasses.fields(optimizer)
        if field.name not in KEEPING and not field.name.startswith("clip_gradient")
    }
    if optimizer.clips_gradients:
        settings["clipvalue"] = (optimizer.clip_gradient_min, optimizer.clip_gradient_max)
    try:
        stocks = kind(**settings)
    except (NotImplementedError, TypeError, ValueError) as error:
        return optimizer, f"{_NAMESPACE}.{name} refuses it: {error}".rstrip(".")
    # Newer protobufs refuse the bool that is stock's default.
    stocks.low_dimensional_packing_status = 0
    if specs.read_optimizer(stocks) != optimizer:
        return optimizer, f"{_NAMESPACE}.{name} does not keep all of its settings"
    return stocks, None


def _preprocessing(spec: Object, legacy: LegacySpec) -> tuple[Preprocessing | None, list[Note]]:
    if legacy.form == "dict":
        return Preprocessing(inputs_of_ids(legacy)), []
    try:
        return Preprocessing(inputs_of_columns(spec.feature_columns)), []
    except errors.Untranslatable as error:
        return None, [Note("column_of_unknown_kind", SPEC, SourceText(error))]


def _changes(
    legacy: LegacySpec, optimizers: Mapping[str, _Optimizer], unknown_columns: list[Note]
) -> Iterator[Change]:
    notes = [*_notes(legacy, optimizers), *unknown_columns]
    order = [SPEC, *(Place("table", table.name) for table in legacy.tables)]
    positions = {place: position for position, place in enumerate(order)}
    for note in sorted(notes, key=lambda note: positions.get(note.where, len(order))):
        optimizer = optimizers.get(note.where.name or "")
        fields = {} if optimizer is None else optimizer._asdict()
        change = render.change(note, legacy.quirks, **fields)
        if change is not None:
            yield Change(**change)


def _notes(legacy: LegacySpec, optimizers: Mapping[str, _Optimizer]) -> Iterator[Note]:
    """Yields the notes on a spec, and on the optimizers that stock's classes cannot express.

    A note on the spec's optimizer is repeated for each table that uses this optimizer.
    """
    for name, optimizer in optimizers.items():
        if optimizer.reason is not None:
            kind = SourceText(optimizer.legacy_kind)
            yield Note("optimizer_of_engine", Place("table", name), kind)
    sharing = [Place("table", table.name) for table in legacy.tables if table.optimizer is None]
    for note in notes_of_spec(legacy):
        at_spec = note.where == SPEC and ROWS[note.rule].of_optimizers
        for where in sharing if at_spec else (note.where,):
            yield dataclasses.replace(note, where=where)
