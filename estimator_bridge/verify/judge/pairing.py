"""Pairs the arrays of two sides, and says what each one is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from estimator_bridge.verify.findings import ACTIVATION, DENSE, GRADIENT, SLOT, TABLE
from estimator_bridge.verify.record.recording import (
    ACTIVATIONS,
    GRADIENTS,
    VARIABLES,
    TableDescription,
    Values,
)
from tf2_engine.types import Array

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
        names_a, names_b = (
            {
                self._key(group, side, name): name
                for name in values
                if not any(outside in name for outside in _OUTSIDE)
            }
            for side, values in enumerate((a, b))
        )
        for side, names, others in ((0, names_a, names_b), (1, names_b, names_a)):
            only = (name for key, name in names.items() if key not in others)
            self.only[side].update(f"{group} {name}" for name in only)
        return {
            self._paired_name(group, name): (a[name], b[names_b[key]])
            for key, name in names_a.items()
            if key in names_b
        }

    def _key(self, group: str, side: int, name: str) -> str | tuple[str | None, str | None]:
        # A slot has other names where a model's own optimizer made it.
        return self._parts[side].get(name, name) if group == VARIABLES else name

    def _paired_name(self, group: str, name: str) -> PairedName:
        if group == VARIABLES:
            table, slot = self._parts[0].get(name, (None, None))
            if table is None:
                return PairedName(name, None, DENSE, _scale_of_variable(name))
            return PairedName(name, table, TABLE if slot is None else f"{SLOT} {slot}", name)
        feature = name.partition(" (core ")[0]
        role = {ACTIVATIONS: ACTIVATION, GRADIENTS: GRADIENT}.get(group, group)
        scale = "" if group == GRADIENTS else name
        return PairedName(name, self._table_of_feature.get(feature), role, scale)


def _parts_of_tables(
    tables: Sequence[TableDescription],
) -> dict[str, tuple[str | None, str | None]]:
    """Returns the table and the slot of each variable; the slot of the rows is None."""
    parts: dict[str, tuple[str | None, str | None]] = {}
    for table in tables:
        parts[table["variable"]] = table["name"], None
        parts.update({name: (table["name"], slot) for name, slot in table["slots"].items()})
    return parts


def _scale_of_variable(name: str) -> str:
    """Returns what variables of a network share a scale: weights, or slots of one name."""
    last = name.rpartition("/")[2]
    return f"slot {last}" if last[:1].isupper() else DENSE
