"""Tests of setting values, and detectors that find the places in a spec where a row applies."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator

from estimator_bridge.settings import row as on
from estimator_bridge.settings.legacy_spec import NOTHING, LegacyOptimizer, LegacySpec, Place
from tf2_engine.types import Object

is_off = operator.not_


def is_set(value: Object) -> bool:
    return value is not None


def is_zero(value: Object) -> bool:
    return not isinstance(value, bool) and bool(value == 0)


def is_not_zero(value: Object) -> bool:
    return value is not None and not is_zero(value)


def equals(wanted: Object) -> on.When:
    return lambda value: value is wanted or bool(value == wanted)


def no_input_per_host(value: Object) -> bool:
    # For stock, True is PER_HOST_V1. In Python True equals 1, which is PER_SHARD_V1.
    modes = (1, "PER_SHARD_V1", 4, "BROADCAST", 5, "SLICED")
    return value is False or (value is not True and value in modes)


def always(place: str) -> on.Detector:
    return lambda legacy: [(Place(place), NOTHING)]


def in_optimizers(value_of: Callable[[LegacyOptimizer], Object]) -> on.Detector:
    """Makes a detector for optimizers; `value_of` returns the value to report, or None."""
    return lambda legacy: (
        (where, value)
        for where, optimizer in legacy.optimizers()
        if (value := value_of(optimizer)) is not None
    )


def multiplier_without_decay(optimizer: LegacyOptimizer) -> Object:
    multiplied = optimizer.settings["multiply_weight_decay_factor_by_learning_rate"]
    return True if multiplied and not optimizer.settings["weight_decay_factor"] else None


def dense_ids(legacy: LegacySpec) -> Iterator[tuple[Place, Object]]:
    for feature in legacy.features:
        if not feature.max_sequence_length and legacy.table(feature.table).combiner is not None:
            yield Place("feature", feature.key), NOTHING
