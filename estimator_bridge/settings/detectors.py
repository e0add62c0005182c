"""Tells which values of settings matter to a row, and at which places of a spec it applies."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator

from estimator_bridge.settings import row as on
from estimator_bridge.settings.legacy_spec import NOTHING, LegacyOptimizer, LegacySpec, Place
from tf2_engine.types import Object

is_off = operator.not_
"""Returns whether a switch is off."""


def is_set(value: Object) -> bool:
    """Returns whether a setting is set."""
    return value is not None


def is_zero(value: Object) -> bool:
    """Returns whether a setting is the number 0."""
    return not isinstance(value, bool) and bool(value == 0)


def is_not_zero(value: Object) -> bool:
    """Returns whether a setting is set, to anything but the number 0."""
    return value is not None and not is_zero(value)


def equals(wanted: Object) -> on.When:
    """Returns a function that returns whether a setting has a value."""
    return lambda value: value is wanted or bool(value == wanted)


def no_input_per_host(value: Object) -> bool:
    """Returns whether an `InputPipelineConfig`, or its name, is neither PER_HOST_V1 nor V2."""
    # True is PER_HOST_V1 to stock, and 1 to Python.
    modes = (1, "PER_SHARD_V1", 4, "BROADCAST", 5, "SLICED")
    return value is False or (value is not True and value in modes)


def always(place: str) -> on.Detector:
    """Returns a detector for rows that are about every program."""
    return lambda legacy: [(Place(place), NOTHING)]


def in_optimizers(value_of: Callable[[LegacyOptimizer], Object]) -> on.Detector:
    """Returns a detector of the optimizers for which a function returns a value to show."""
    return lambda legacy: (
        (where, value)
        for where, optimizer in legacy.optimizers()
        if (value := value_of(optimizer)) is not None
    )


def multiplier_without_decay(optimizer: LegacyOptimizer) -> Object:
    """Returns True if an optimizer multiplies its decay by the rate and has no decay, else None."""
    multiplied = optimizer.settings["multiply_weight_decay_factor_by_learning_rate"]
    return True if multiplied and not optimizer.settings["weight_decay_factor"] else None


def dense_ids(legacy: LegacySpec) -> Iterator[tuple[Place, Object]]:
    """Yields the features whose ids, if they are dense, lose id 0."""
    for feature in legacy.features:
        if not feature.max_sequence_length and legacy.table(feature.table).combiner is not None:
            yield Place("feature", feature.key), NOTHING
