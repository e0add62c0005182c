"""From a legacy spec to what the engine is told. Pure."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Iterator
from typing import Any

from estimator_bridge import errors
from estimator_bridge.legacy.parameters import StochasticGradientDescentParameters
from estimator_bridge.translation.legacy_spec import LegacyOptimizer, LegacySpec, LegacyTable
from estimator_bridge.translation.optimizer_rows import OPTIMIZERS
from tf2_engine.optimizers import Optimizer
from tf2_engine.specs import EngineSpec, FeatureSpec, TableSpec

Shape = tuple[int | None, ...]
Rates = dict[Callable[[Any], Any], Callable[[], Any]]

# Stock's: an evaluation updates nothing, but the device wants an optimizer.
_INFERENCE_OPTIMIZER = LegacyOptimizer(
    "StochasticGradientDescentParameters", vars(StochasticGradientDescentParameters(1.0))
)


@dataclasses.dataclass(frozen=True)
class Translation:
    """What the engine is told.

    Attributes:
        engine_spec: tables and features in the order in which stock hands them to the device; its
            structure is a dict by feature key.
        output_shapes: for each feature, in that order, [batch per core] or [batch per core, T];
            the first is None for an open batch size.
        notes: a line for every setting that has no effect, or another than one would expect.
    """

    engine_spec: EngineSpec
    output_shapes: tuple[Shape, ...]
    notes: tuple[str, ...]


def translate(
    legacy: LegacySpec,
    *,
    training: bool,
    batch_size: int | None,
    num_cores: int,
    step: Callable[[], Any],
) -> Translation:
    """Translates a spec; every setting is carried explicitly, or refused by name.

    Args:
        training: False gives tables without an optimizer of their own stochastic gradient
            descent of rate 1, as stock's inference mode does. Nothing is updated then, so
            settings of updates raise no notes.
        batch_size: samples of the global batch; None when batches differ in size.
        step: returns the global step; called in the graph in which a `learning_rate_fn` is.

    Raises:
        Untranslatable: a setting, or a whole optimizer, has no counterpart.
        InvalidSpec: a setting is outside its range, a table has no feature or no optimizer, or
            the cores do not divide the batch.
        WrongType: a learning rate is no number.
    """
    notes = list(legacy.notes)
    rates: Rates = {}
    tables = []
    for table in legacy.tables:
        optimizer = _optimizer_of(table, legacy, training, rates, step)
        if training:
            notes.extend(_update_notes(table, legacy))
            optimizer = _with_clipping_limit(optimizer, legacy)
        if table.combiner is None:
            notes.append(
                f"Table {table.name!r}: combiner=None adds the embeddings of a sample's ids with "
                "use_tpu=True; stock takes their mean with use_tpu=False."
            )
        tables.append(_translate_table(table, optimizer))
    if training and legacy.clipping_limit is not None:
        notes.append(_clipping_note(legacy))
    features = tuple(
        FeatureSpec(
            name=feature.key,
            table=feature.table,
            max_sequence_length=feature.max_sequence_length,
            # Stock's descriptors have no names.
            send_name=False,
        )
        for feature in legacy.features
    )
    engine_spec = EngineSpec(
        tables=tuple(tables),
        features=features,
        structure={feature.key: position for position, feature in enumerate(legacy.features)},
        pipeline_execution_with_tensor_core=legacy.pipeline_execution_with_tensor_core,
        partition_strategy=legacy.partition_strategy,
        profile_data_directory=legacy.profile_data_directory,
    )
    return Translation(
        engine_spec, output_shapes(legacy, batch_size, num_cores), tuple(dict.fromkeys(notes))
    )


def output_shapes(legacy: LegacySpec, batch_size: int | None, num_cores: int) -> tuple[Shape, ...]:
    """Returns the per-core shape of each feature's activation without its last dimension.

    Raises:
        InvalidSpec: the cores do not divide the batch.
    """
    if batch_size is not None and batch_size % num_cores:
        raise errors.InvalidSpec(
            f"The batch size {batch_size} is not a multiple of the number of cores {num_cores}. "
            "Change one of them."
        )
    samples = None if batch_size is None else batch_size // num_cores
    return tuple(
        (samples, feature.max_sequence_length) if feature.max_sequence_length else (samples,)
        for feature in legacy.features
    )


def translate_optimizer(legacy: LegacyOptimizer, rate: Any, where: str = "") -> Optimizer:
    """Rebuilds a legacy optimizer for the engine, every setting carried explicitly.

    Args:
        rate: takes the place of the optimizer's own rate: a number, or a callable without
            arguments.
        where: starts messages, as in "Table 'a': ".

    Raises:
        Untranslatable: the optimizer, or one of its settings, has no counterpart.
        InvalidSpec: the engine refuses a setting.
    """
    row = OPTIMIZERS[legacy.kind]
    names = row.names
    left_over = {
        k: v
        for k, v in legacy.settings.items()
        if k not in names and v is not None and v != row.only.get(k)
    }
    if left_over:
        raise errors.Untranslatable(
            f"{where}`{legacy.kind}`: cannot carry {left_over} over to `{row.engine.__name__}`. "
            "Remove it from the optimizer."
        )
    settings = {names[k]: v for k, v in legacy.settings.items() if k in names}
    for field in dataclasses.fields(row.engine):
        if isinstance(field.default, bool):
            # Stock tests flags for truth, and its unset flag is None.
            settings[field.name] = bool(settings.get(field.name, field.default))
    try:
        return row.engine(**{**settings, "learning_rate": rate})
    except errors.InvalidSpec as error:
        raise errors.InvalidSpec(f"{where}{error}") from error


def _optimizer_of(
    table: LegacyTable,
    legacy: LegacySpec,
    training: bool,
    rates: Rates,
    step: Callable[[], Any],
) -> Optimizer:
    where = f"Table {table.name!r}: "
    own = table.optimizer or (legacy.optimizer if training else _INFERENCE_OPTIMIZER)
    if own is None:
        raise errors.InvalidSpec(
            f"{where}it has no optimizer. Give `optimization_parameters` to it or to the spec."
        )
    # Stock's order: the table's rate unless 0, its function, the optimizer's rate.
    rate: Any
    if table.learning_rate:
        rate = _constant(table.learning_rate, f"{where}`learning_rate`")
    elif table.learning_rate_fn:
        rate = _dynamic(table.learning_rate_fn, rates, step)
    else:
        rate = _constant(own.settings["learning_rate"], f"{where}`{own.kind}.learning_rate`")
    return translate_optimizer(own, rate, where)


def _constant(rate: Any, what: str) -> float:
    if not isinstance(rate, numbers.Real):
        raise errors.WrongType(
            f"{what} must be a number, got {rate!r}. For a rate that changes use the table's "
            "`learning_rate_fn`."
        )
    return float(rate)


def _dynamic(
    function: Callable[[Any], Any], rates: Rates, step: Callable[[], Any]
) -> Callable[[], Any]:
    """Returns one closure per distinct function, so that tables share its tag as in stock."""
    return rates.setdefault(function, lambda: function(step()))


def _translate_table(table: LegacyTable, optimizer: Optimizer) -> TableSpec:
    return TableSpec(
        name=table.name,
        vocabulary_size=table.vocabulary_size,
        dim=table.dimension,
        combiner="sum" if table.combiner is None else table.combiner,
        optimizer=optimizer,
        initializer=table.initializer,
        hot_id_replication=table.hot_id_replication,
    )


def _with_clipping_limit(optimizer: Optimizer, legacy: LegacySpec) -> Optimizer:
    limit = legacy.clipping_limit
    if limit is None or legacy.quirks == "stock":
        return optimizer
    if not isinstance(limit, numbers.Real) or limit <= 0 or math.isnan(limit):
        raise errors.InvalidSpec(
            f"`EmbeddingConfigSpec`: `clipping_limit` must be a positive number, got {limit!r}. "
            'Remove it; quirks="stock" ignores it, as stock does.'
        )
    # A table with a start of its own holds no weights, which is what the limit is for.
    if optimizer.clips_weights or optimizer.row_initial_value is not None:
        return optimizer
    return dataclasses.replace(
        optimizer, clip_weight_min=-float(limit), clip_weight_max=float(limit)
    )


def _clipping_note(legacy: LegacySpec) -> str:
    limit = legacy.clipping_limit
    if legacy.quirks == "stock":
        return (
            f"`clipping_limit`={limit} is ignored, as stock ignores it. Use `clip_weight_min` and "
            '`clip_weight_max` of the optimizer, or quirks="documented".'
        )
    return (
        f"`clipping_limit`={limit}: weights are kept in [-{limit}, {limit}] as documented, in "
        "tables whose optimizer sets no `clip_weight_min` or `clip_weight_max`; stock ignores it "
        '(quirks="stock").'
    )


def _update_notes(table: LegacyTable, legacy: LegacySpec) -> Iterator[str]:
    if table.learning_rate is not None and not table.learning_rate:
        yield (
            f"Table {table.name!r}: `learning_rate`={table.learning_rate} counts as unset, as in "
            "stock; the rate of the optimizer is used."
        )
    optimizer = table.optimizer or legacy.optimizer
    if optimizer is None:
        return
    # An optimizer of all tables is spoken of once.
    where = (
        f"Table {table.name!r}: `{optimizer.kind}`" if table.optimizer else f"`{optimizer.kind}`"
    )
    decay = optimizer.settings.get("weight_decay_factor")
    if decay is not None and not decay:
        yield f"{where}: `weight_decay_factor`={decay} counts as unset, as in stock."
    if optimizer.settings.get("multiply_weight_decay_factor_by_learning_rate") and not decay:
        yield (
            f"{where}: `multiply_weight_decay_factor_by_learning_rate` has no effect without a "
            "`weight_decay_factor`."
        )
