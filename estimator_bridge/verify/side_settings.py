"""The settings of a program's embedding config, each with what a side makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from estimator_bridge.settings import note, render
from estimator_bridge.settings.detect import Value, values
from estimator_bridge.settings.legacy_spec import LegacySpec
from tf2_engine.types import Object


class SideSetting(NamedTuple):
    """One setting.

    Attributes:
        where: "spec", or a table or feature.
        name, value: as the program writes them.
        ignored: why the side does without it; "" if it does not.
    """

    where: str
    name: str
    value: str
    ignored: str


def settings_of(legacy: LegacySpec, *, stock: bool, use_tpu: bool) -> list[SideSetting]:
    """Returns the settings that a program makes, with the reasons why a side ignores some."""
    quirks = None if stock else legacy.quirks
    return [
        SideSetting(
            "spec" if value.where == note.SPEC else " ".join(map(str, value.where)),
            _name(value),
            shown := _shown(value),
            ""
            if shown == _NOT_SET
            else render.why_not_as_written(value, use_tpu=use_tpu, quirks=quirks),
        )
        for value in values(legacy)
    ]


_NOT_SET = "not set"


def _name(value: Value) -> str:
    return f"{value.owner}.{value.setting}" if value.owner.endswith("Parameters") else value.setting


def _shown(value: Value) -> str:
    setting = value.value
    if callable(setting):
        return f"a function, {getattr(setting, '__name__', type(setting).__name__)}"
    # None is a combiner, and of other settings the absence.
    return _NOT_SET if setting is None and value.setting != "combiner" else str(setting)


def flattened(message: Mapping[str, Object], above: str = "") -> dict[str, str]:
    """Returns the leaves of nested dicts and lists, by their paths."""
    flat: dict[str, str] = {}
    for key, value in message.items():
        path = f"{above}{key}"
        if isinstance(value, Mapping):
            flat.update(flattened(value, f"{path}.") or {path: "set"})
        elif isinstance(value, list):
            # Stock's descriptors of features have no names.
            named = {
                str(part.get("name", i)) if isinstance(part, Mapping) else str(i): part
                for i, part in enumerate(value)
            }
            flat.update(flattened(named, f"{path}."))
        else:
            flat[path] = str(value)
    return flat
