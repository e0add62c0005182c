"""Which array of one side is which of the other, and what it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from estimator_bridge.verify.recording import ACTIVATIONS, GRADIENTS, VARIABLES, Array, Values

TABLE, SLOT, DENSE, ACTIVATION, GRADIENT = "table", "slot", "dense", "activation", "gradient"

# No part of a model: stock's stand-ins for tables, which hold nothing, and what a hook counts.
_OUTSIDE = ("tpu_embedding_dummy_table_variable_", "signal_early_stopping/")


class Named(NamedTuple):
    """An array of both sides.

    Attributes:
        name: side A's.
        table: whose it is, or None.
        role: "table", "slot <name>", "dense", "activation", "gradient" or "loss".
        scale: arrays of one scale take rounding errors from each other.
    """

    name: str
    table: str | None
    role: str
    scale: str


class Names:
    """The tables of both sides, by their variables.

    Args:
        a, b: tables as `description.describe` returns them.
    """

    def __init__(self, a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> None:
        self._known = [_known(tables) for tables in (a, b)]
        self._features = {key: table["name"] for table in a for key in table["features"]}

    def paired(
        self, group: str, ours: Values, theirs: Values, only: tuple[set[str], set[str]]
    ) -> Iterator[tuple[Named, tuple[Array, Array]]]:
        """Yields the arrays that both sides have; the names of others go into `only`."""
        keys = [
            {
                self._key(group, side, name): name
                for name in values
                if not any(outside in name for outside in _OUTSIDE)
            }
            for side, values in enumerate((ours, theirs))
        ]
        # An array is only on one side if it is so in the state; taps depend on the mode.
        for side in (0, 1):
            only[side].update(
                f"{group} {keys[side][key]}" for key in keys[side] if key not in keys[1 - side]
            )
        for key, name in keys[0].items():
            if key in keys[1]:
                yield self._named(group, name), (ours[name], theirs[keys[1][key]])

    def _key(self, group: str, side: int, name: str) -> Any:
        # A slot has other names where a model's own optimizer made it.
        return self._known[side].get(name, name) if group == VARIABLES else name

    def _named(self, group: str, name: str) -> Named:
        if group == VARIABLES:
            table, slot = self._known[0].get(name, (None, None))
            if table is None:
                return Named(name, None, DENSE, _kind(name))
            return Named(name, table, TABLE if slot is None else f"{SLOT} {slot}", name)
        feature = name.partition(" (core ")[0]
        role = {ACTIVATIONS: ACTIVATION, GRADIENTS: GRADIENT}.get(group, group)
        scale = "" if group == GRADIENTS else name
        return Named(name, self._features.get(feature), role, scale)


def _known(tables: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, str | None]]:
    """Returns the table and the slot, None for the rows themselves, of each variable of tables."""
    known: dict[str, tuple[str, str | None]] = {}
    for table in tables:
        known[table["variable"]] = table["name"], None
        known.update({name: (table["name"], slot) for name, slot in table["slots"].items()})
    return known


def _kind(name: str) -> str:
    """Returns which of a network's variables are of a kind: weights, or slots of one name."""
    last = name.rpartition("/")[2]
    return f"slot {last}" if last[:1].isupper() else DENSE
