"""Pairs the arrays of two sides by their meaning."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from estimator_bridge.recording.files import (
    ACTIVATIONS,
    GRADIENTS,
    VARIABLES,
    TableDescription,
    Values,
    is_outside,
    parts_of_tables,
)
from estimator_bridge.verification import findings
from tf2_engine.types import Array, Object

ArrayPair = tuple[Array, Array]
"""The same array on sides A and B."""


class PairedName(NamedTuple):
    """The name of an array on side A and on side B, its role, and its table if it has one."""

    name: str
    table: str | None
    role: str
    name_b: str


class Pairing:
    """Pairs arrays by the tables of both sides; `only` collects arrays that one side lacks."""

    def __init__(
        self,
        a: Sequence[TableDescription],
        b: Sequence[TableDescription],
        outside: Collection[str] = (),
    ) -> None:
        self._outside = {*outside}
        self.only: tuple[set[str], set[str]] = (set(), set())
        self._parts = [parts_of_tables(tables) for tables in (a, b)]
        self._table_of_feature = {key: table["name"] for table in a for key in table["features"]}

    def paired(self, group: str, a: Values, b: Values) -> dict[PairedName, ArrayPair]:
        names_a, names_b = self._names(group, 0, a), self._names(group, 1, b)
        self.only[0].update(f"{group} {names_a[key]}" for key in names_a.keys() - names_b.keys())
        self.only[1].update(f"{group} {names_b[key]}" for key in names_b.keys() - names_a.keys())
        return {
            self._paired_name(group, name, names_b[key]): (a[name], b[names_b[key]])
            for key, name in names_a.items()
            if key in names_b
        }

    def _names(self, group: str, side: int, values: Values) -> dict[Object, str]:
        """Returns the names on a side by keys that both sides share."""
        # A slot made by the model's own optimizer has another name.
        parts = self._parts[side] if group == VARIABLES else {}
        return {
            parts.get(name, name): name
            for name in values
            if name not in self._outside and not is_outside(name)
        }

    def _paired_name(self, group: str, name: str, name_b: str) -> PairedName:
        if group == VARIABLES:
            if name not in self._parts[0]:
                return PairedName(name, None, findings.DENSE, name_b)
            table, slot = self._parts[0][name]
            role = findings.TABLE if slot is None else f"{findings.SLOT} {slot}"
            return PairedName(name, table, role, name_b)
        roles = {ACTIVATIONS: findings.ACTIVATION, GRADIENTS: findings.GRADIENT}
        table_of_feature = self._table_of_feature.get(name)
        return PairedName(name, table_of_feature, roles.get(group, group), name_b)
