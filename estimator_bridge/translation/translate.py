"""Translates a legacy spec to the engine's spec."""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
from collections.abc import Callable

from estimator_bridge import errors
from estimator_bridge.legacy.parameters import StochasticGradientDescentParameters
from estimator_bridge.settings.legacy_spec import LegacyOptimizer, LegacySpec, LegacyTable, OfStep
from estimator_bridge.settings.optimizer_rows import OPTIMIZERS
from tf2_engine.optimizers import Optimizer
from tf2_engine.plan import Shape
from tf2_engine.specs import EngineSpec, FeatureSpec, TableSpec
from tf2_engine.types import Object, Rate, TensorLike

RateOf = Callable[[OfStep], Callable[[], "TensorLike"]]

# As in stock: an evaluation updates nothing, but the device needs an optimizer.
_INFERENCE_OPTIMIZER = LegacyOptimizer(
    "StochasticGradientDescentParameters", vars(StochasticGradientDescentParameters(1.0))
)


def translate(legacy: LegacySpec, *, training: bool, step: Callable[[], TensorLike]) -> EngineSpec:
    """Translates a legacy spec; tables and features are in stock's order.

    Args:
        training: if False, tables without an optimizer get stochastic gradient descent with rate 1,
            as in stock's inference mode.
        step: returns the global step; called in the graph that calls a `learning_rate_fn`.

    Raises:
        Untranslatable: a setting, or a whole optimizer, has no counterpart.
        InvalidSpec: a setting is out of range, or a table has no feature or no optimizer.
        WrongType: a learning rate is not a number.
    """

    @functools.cache  # as in stock, tables with the same function share its tag
    def call_rate(function: OfStep) -> Callable[[], TensorLike]:
        return lambda: function(step())

    return EngineSpec(
        tables=tuple(
            TableSpec(
                name=table.name,
                vocabulary_size=table.vocabulary_size,
                dim=table.dimension,
                combiner="sum" if table.combiner is None else table.combiner,
                optimizer=_optimizer_of(table, legacy, training, call_rate),
                initializer=table.initializer,
                hot_id_replication=table.hot_id_replication,
            )
            for table in legacy.tables
        ),
        features=tuple(
            # Stock's descriptors have no names.
            FeatureSpec(feature.key, feature.table, feature.max_sequence_length, send_name=False)
            for feature in legacy.features
        ),
        structure={feature.key: position for position, feature in enumerate(legacy.features)},
        pipeline_execution_with_tensor_core=legacy.pipeline_execution_with_tensor_core,
        partition_strategy=legacy.partition_strategy,
        profile_data_directory=legacy.profile_data_directory,
    )


def output_shapes(legacy: LegacySpec, batch_size: int | None, num_cores: int) -> tuple[Shape, ...]:
    """Computes each feature's activation shape on a core, [batch per core] or [batch per core, T].

    `batch_size` counts the samples of all cores. The last dimension is left out.
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


def translate_optimizer(legacy: LegacyOptimizer, rate: Rate, where: str = "") -> Optimizer:
    """Makes the engine's optimizer for a legacy optimizer, with every setting set explicitly.

    `rate` replaces the optimizer's own rate. Messages start with `where`, such as "Table 'a': ".
    """
    row = OPTIMIZERS[legacy.kind]
    names = row.names
    others = {k: v for k, v in legacy.settings.items() if k not in names}
    left_over = {k: v for k, v in others.items() if v is not None and v != row.only.get(k)}
    if left_over:
        raise errors.Untranslatable(
            f"{where}`{legacy.kind}`: cannot carry {left_over} over to `{row.engine.__name__}`. "
            "Remove it from the optimizer."
        )
    settings = {names[k]: v for k, v in legacy.settings.items() if k in names}
    for field in dataclasses.fields(row.engine):
        if isinstance(field.default, bool):
            # Stock only tests whether a flag is true, and an unset flag is None.
            settings[field.name] = bool(settings.get(field.name, field.default))
    try:
        return row.engine(**{**settings, "learning_rate": rate})
    except errors.InvalidSpec as error:
        raise errors.InvalidSpec(f"{where}{error}") from error


def _optimizer_of(
    table: LegacyTable, legacy: LegacySpec, training: bool, call_rate: RateOf
) -> Optimizer:
    where = f"Table {table.name!r}: "
    optimizer = table.optimizer or (legacy.optimizer if training else _INFERENCE_OPTIMIZER)
    if optimizer is None:
        raise errors.InvalidSpec(
            f"{where}the table has no optimizer. Give `optimization_parameters` to the table or "
            "to the spec."
        )
    legacy_rate = rate_of(table, optimizer)
    rate = call_rate(legacy_rate) if callable(legacy_rate) else legacy_rate
    translated = translate_optimizer(optimizer, rate, where)
    return _with_clipping_limit(translated, legacy) if training else translated


def rate_of(table: LegacyTable, optimizer: LegacyOptimizer) -> float | OfStep:
    where = f"Table {table.name!r}: "
    if table.learning_rate:
        return _constant(table.learning_rate, f"{where}`learning_rate`")
    if table.learning_rate_fn:
        return table.learning_rate_fn
    of_optimizer = optimizer.settings["learning_rate"]
    return _constant(of_optimizer, f"{where}`{optimizer.kind}.learning_rate`")


def _constant(rate: Object, what: str) -> float:
    if not isinstance(rate, numbers.Real):
        raise errors.WrongType(
            f"{what} must be a number, got {rate!r}. For a rate that changes, use the table's "
            "`learning_rate_fn`."
        )
    return float(rate)


def _with_clipping_limit(optimizer: Optimizer, legacy: LegacySpec) -> Optimizer:
    limit = legacy.clipping_limit
    if limit is None or legacy.quirks == "stock":
        return optimizer
    if not isinstance(limit, numbers.Real) or limit <= 0 or math.isnan(limit):
        raise errors.InvalidSpec(
            f"`EmbeddingConfigSpec`: `clipping_limit` must be a positive number, got {limit!r}. "
            'Remove it; quirks="stock" ignores it, as stock does.'
        )
    # If a table sets its own initial row value, its rows are not weights, and have no limits.
    if optimizer.clips_weights or optimizer.row_initial_value is not None:
        return optimizer
    return dataclasses.replace(
        optimizer, clip_weight_min=-float(limit), clip_weight_max=float(limit)
    )
