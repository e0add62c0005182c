"""Lists the settings of a program's embedding config, and why a side ignores some of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from estimator_bridge.settings import render
from estimator_bridge.settings.detect import values
from estimator_bridge.settings.legacy_spec import SPEC, LegacySpec
from estimator_bridge.translation import on_sparse_cores
from estimator_bridge.verify.sides import Side
from tf2_engine.types import Object


class SideSetting(NamedTuple):
    """One setting.

    Attributes:
        where: "spec", or the table or feature.
        name, value: as the program writes them.
        ignored: why the side ignores it, or "".
    """

    where: str
    name: str
    value: str
    ignored: str


def settings_of(
    legacy: LegacySpec | None, side: Side, *, use_tpu: bool, arithmetic: str
) -> list[SideSetting]:
    if legacy is None:
        return []
    quirks = None if side.stock else legacy.quirks
    settings = []
    for each in values(legacy):
        where = "spec" if each.where == SPEC else " ".join(map(str, each.where))
        of_optimizer = each.owner.endswith("Parameters")
        name = f"{each.owner}.{each.setting}" if of_optimizer else each.setting
        value, ignored = str(each.value), ""
        if callable(each.value):
            value = f"a function, {getattr(each.value, '__name__', type(each.value).__name__)}"
        # As a combiner, None is a value; for other settings it means "not set".
        if each.value is None and each.setting != "combiner":
            value = "not set"
        else:
            ignored = render.why_not_as_written(each, use_tpu=use_tpu, quirks=quirks)
            if arithmetic == "sparsecore" and use_tpu and not ignored:
                ignored = on_sparse_cores.why_ignored(each, stock_v2=side.stock_v2)
        settings.append(SideSetting(where, name, value, ignored))
    return settings


def flattened(message: Mapping[str, Object], above: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in message.items():
        path = f"{above}{key}"
        if isinstance(value, Mapping):
            flat.update(flattened(value, f"{path}.") or {path: "set"})
        elif isinstance(value, list):
            # Stock's feature descriptors have no names.
            named = {
                str(part.get("name", i)) if isinstance(part, Mapping) else str(i): part
                for i, part in enumerate(value)
            }
            flat.update(flattened(named, f"{path}."))
        else:
            flat[path] = str(value)
    return flat
