"""Constructors for common kinds of rows, which let the catalogue read like a table."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator

from estimator_bridge.settings import row as on
from estimator_bridge.settings.legacy_spec import NOTHING, LegacyOptimizer, LegacySpec, Place
from estimator_bridge.settings.row import ChangeText, Ignored, OnSparseCores, SettingRow
from tf2_engine.types import Object

is_off = operator.not_
DEVICE_ONLY = Ignored("ignored", "it has no effect with use_tpu=False")
OF_OPTIMIZER = "the optimizer of the TableConfig has this setting"
ignored = functools.partial(SettingRow, "ignored")
surprising = functools.partial(SettingRow, "surprising")
differs = functools.partial(SettingRow, "differs")
refused = functools.partial(SettingRow, "refused")
plain = functools.partial(SettingRow, on.PLAIN)
form = functools.partial(ChangeText, "form")
ours = functools.partial(ChangeText, "ours")
numbers = functools.partial(ChangeText, "numbers")
by_hand = functools.partial(ChangeText, "by hand")
left_out = functools.partial(ChangeText, "left out", "")
# On TPUs with SparseCores.
raises = functools.partial(OnSparseCores, "raises")
dropped = functools.partial(OnSparseCores, "ignored")
other = functools.partial(OnSparseCores, "other")
gone = functools.partial(OnSparseCores, "gone")


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


def fields(
    names: str,
    tpu: str,
    tf2: str,
    cpu: str = DEVICE_ONLY,
    bridge: str = "",
    why: str = "",
    sparse_core: OnSparseCores = on.AS_BEFORE,
) -> SettingRow:
    """Makes a row for fields without special cases. `names` is like "FeatureConfig: table_id"."""
    owner, settings = names.split(": ")
    reads: dict[str, on.When | None] = {f"{owner}.{name}": None for name in settings.split()}
    return plain(tpu, tf2, cpu, bridge=bridge, why=why, reads=reads, sparse_core=sparse_core)


def limits(name: str, tpu: str, sparse_core: OnSparseCores) -> SettingRow:
    def ends_of(optimizer: LegacyOptimizer) -> Object:
        ends = optimizer.settings[f"{name}_min"], optimizer.settings[f"{name}_max"]
        return None if ends == (None, None) else ends

    return plain(
        tpu,
        OF_OPTIMIZER,
        sparse_core=sparse_core,
        reads={f"*Parameters.{name}_min": is_set, f"*Parameters.{name}_max": is_set},
        detect=in_optimizers(ends_of),
        shown=f"{name}_min={{value[0]}}, {name}_max={{value[1]}}",
        finding="sparse_core",
    )
