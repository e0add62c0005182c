"""Constructors for common kinds of rows, which let the catalogue read like a table."""

from __future__ import annotations

import functools

from estimator_bridge.settings import row as on
from estimator_bridge.settings.detectors import in_optimizers, is_set
from estimator_bridge.settings.legacy_spec import LegacyOptimizer
from estimator_bridge.settings.row import ChangeText, Ignored, OnSparseCores, SettingRow
from tf2_engine.types import Object

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
