"""Pairs the arrays of two sides, and says what each one is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from estimator_bridge.verify.findings import ACTIVATION, DENSE, GRADIENT, SLOT, TABLE
from estimator_bridge.verify.record import recording
from estimator_bridge.verify.record.recording import TableDescription, Values
from tf2_engine.types import Array, Object

ArrayPair = tuple[Array, Array]
"""The same array on sides A and B."""

# No part of a model: stock's stand-ins for tables, which hold nothing, and what a hook counts.
_OUTSIDE = ("tpu_embedding_dummy_table_variable_", "signal_early_stopping/")


class PairedName(NamedTuple):
    """The name and role of an array of both sides.

    Attributes:
        name: side A's.
        table: whose it is, or None.
        role: one of `findings.STAGES`; of a slot "slot <name>".
        scale: arrays of one scale take rounding errors from each other.
    """

    name: str
    table: str | None
    role: str
    scale: str


class Pairing:
    """Pairs arrays by the tables of both sides.

    Args:
        a, b: the tables of each side.

    Attributes:
        only: the arrays, by group and name, that one side alone has.
    """

    def __init__(self, a: Sequence[TableDescription], b: Sequence[TableDescription]) -> None:
        self.only: tuple[set[str], set[str]] = (set(), set())
        self._parts = [_parts_of_tables(tables) for tables in (a, b)]
        self._table_of_feature = {key: table["name"] for table in a for key in table["features"]}

    def paired(self, group: str, a: Values, b: Values) -> dict[PairedName, ArrayPair]:
        """Returns the arrays that both sides have; the names of the others go into `only`."""
        names_a, names_b = self._names(group, 0, a), self._names(group, 1, b)
        self.only[0].update(f"{group} {names_a[key]}" for key in names_a.keys() - names_b.keys())
        self.only[1].update(f"{group} {names_b[key]}" for key in names_b.keys() - names_a.keys())
        return {
            self._paired_name(group, name): (a[name], b[names_b[key]])
            for key, name in names_a.items()
            if key in names_b
        }

    def _names(self, group: str, side: int, values: Values) -> dict[Object, str]:
        """Returns the names on a side by keys that are the same on both."""
        # A slot has other names where a model's own optimizer made it.
        parts = self._parts[side] if group == recording.VARIABLES else {}
        return {
            parts.get(name, name): name
            for name in values
            if not any(outside in name for outside in _OUTSIDE)
        }

    def _paired_name(self, group: str, name: str) -> PairedName:
        if group == recording.VARIABLES:
            if name not in self._parts[0]:
                # Variables of a network share a scale: weights, or slots of one name.
                last = name.rpartition("/")[2]
                scale = f"slot {last}" if last[:1].isupper() else DENSE
                return PairedName(name, None, DENSE, scale)
            table, slot = self._parts[0][name]
            return PairedName(name, table, TABLE if slot is None else f"{SLOT} {slot}", name)
        feature = name.partition(" (core ")[0]
        roles = {recording.ACTIVATIONS: ACTIVATION, recording.GRADIENTS: GRADIENT}
        role = roles.get(group, group)
        scale = "" if role == GRADIENT else name
        return PairedName(name, self._table_of_feature.get(feature), role, scale)


def _parts_of_tables(tables: Sequence[TableDescription]) -> dict[str, tuple[str, str | None]]:
    """Returns the table and the slot of each variable; the slot of the rows is None."""
    parts: dict[str, tuple[str, str | None]] = {}
    for table in tables:
        parts[table["variable"]] = table["name"], None
        parts.update({name: (table["name"], slot) for name, slot in table["slots"].items()})
    return parts
