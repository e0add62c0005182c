"""What rows look for: predicates over a setting's value, and detectors over a whole spec."""

from __future__ import annotations

from collections.abc import Iterator

from estimator_bridge.settings import note
from estimator_bridge.settings.legacy_spec import LegacyOptimizer, LegacySpec
from estimator_bridge.settings.note import Place, SourceText
from estimator_bridge.settings.row import Detector, When
from tf2_engine.types import Object

Places = Iterator[tuple[Place, Object]]


def given(value: Object) -> bool:
    """Whether a setting is set."""
    return value is not None


def zero(value: Object) -> bool:
    """Whether a number is 0."""
    return not isinstance(value, bool) and bool(value == 0)


def not_zero(value: Object) -> bool:
    """Whether a setting is set, and not to 0."""
    return value is not None and not zero(value)


def off(value: Object) -> bool:
    """Whether a switch is off."""
    return not value


def equals(wanted: Object) -> When:
    """Returns a predicate: whether a value is this one."""
    return lambda value: value is wanted or bool(value == wanted)


def no_input_per_host(value: Object) -> bool:
    """Whether an `InputPipelineConfig`, a number or a name, is neither PER_HOST_V1 nor V2."""
    # True is PER_HOST_V1 to stock, and 1 to Python.
    modes = (1, "PER_SHARD_V1", 4, "BROADCAST", 5, "SLICED")
    return value is False or (value is not True and value in modes)


def always(place: str) -> Detector:
    """Returns a detector that applies to every spec."""
    return lambda legacy: [(Place(place), None)]


def optimizers(*kinds: str) -> Detector:
    """Returns a detector of optimizers of some classes."""
    return lambda legacy: (
        (where, SourceText(optimizer.kind))
        for where, optimizer in legacy.optimizers()
        if optimizer.kind in kinds
    )


def adam(legacy: LegacySpec) -> Places:
    """Yields the epsilon of every Adam."""
    for where, optimizer in legacy.optimizers():
        if optimizer.kind == "AdamParameters":
            yield where, optimizer.settings["epsilon"]


def multiplier_without_decay(legacy: LegacySpec) -> Places:
    """Yields the optimizers whose decay is to be multiplied by the rate, and is none."""
    for where, optimizer in legacy.optimizers():
        multiplied = optimizer.settings["multiply_weight_decay_factor_by_learning_rate"]
        if multiplied and not optimizer.settings["weight_decay_factor"]:
            yield where, True


def limits(name: str) -> Detector:
    """Returns a detector of optimizers that set a lower or an upper limit."""

    def ends(optimizer: LegacyOptimizer) -> tuple[Object, Object]:
        return optimizer.settings[f"{name}_min"], optimizer.settings[f"{name}_max"]

    return lambda legacy: (
        (where, ends(optimizer))
        for where, optimizer in legacy.optimizers()
        if ends(optimizer) != (None, None)
    )


def config_dicts(legacy: LegacySpec) -> Places:
    """Yields the spec if it is of config dicts."""
    if legacy.form == "dict":
        yield note.SPEC, None


def dense_ids(legacy: LegacySpec) -> Places:
    """Yields the features whose ids, if they are dense, lose id 0."""
    for feature in legacy.features:
        if not feature.max_sequence_length and legacy.table(feature.table).combiner is not None:
            yield note.feature(feature.key), None


def tensor_core_columns(legacy: LegacySpec) -> Places:
    """Yields the columns whose tables are ordinary variables."""
    for column in legacy.tensor_core_columns:
        yield note.feature(column.key), "tpu_tensor_core"
