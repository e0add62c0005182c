"""Pairs the arrays of two sides by their meaning."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from estimator_bridge.verify import findings
from estimator_bridge.verify.record import recording
from estimator_bridge.verify.record.recording import TableDescription, Values, parts_of_tables
from tf2_engine.types import Array, Object

# No part of a model: stock's stand-ins for tables, which hold nothing, and what a hook counts.
_OUTSIDE = ("tpu_embedding_dummy_table_variable_", "signal_early_stopping/")

ArrayPair = tuple[Array, Array]
"""The same array on sides A and B."""


class PairedName(NamedTuple):
    """The name and role of an array of both sides.

    Attributes:
        name: side A's.
        table: whose it is, or None.
        role: one of `findings.STAGES`; of a slot "slot <name>".
        name_b: side B's.
    """

    name: str
    table: str | None
    role: str
    name_b: str


class Pairing:
    """Pairs arrays by the tables of both sides; `only` are those that one side alone has.

    Args:
        outside: names of variables that are left out.
    """

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
        """Returns the arrays that both sides have; the names of the others go into `only`."""
        names_a, names_b = self._names(group, 0, a), self._names(group, 1, b)
        self.only[0].update(f"{group} {names_a[key]}" for key in names_a.keys() - names_b.keys())
        self.only[1].update(f"{group} {names_b[key]}" for key in names_b.keys() - names_a.keys())
        return {
            self._paired_name(group, name, names_b[key]): (a[name], b[names_b[key]])
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
            if name not in self._outside and not any(outside in name for outside in _OUTSIDE)
        }

    def _paired_name(self, group: str, name: str, name_b: str) -> PairedName:
        if group == recording.VARIABLES:
            if name not in self._parts[0]:
                return PairedName(name, None, findings.DENSE, name_b)
            table, slot = self._parts[0][name]
            role = findings.TABLE if slot is None else f"{findings.SLOT} {slot}"
            return PairedName(name, table, role, name_b)
        roles = {recording.ACTIVATIONS: findings.ACTIVATION, recording.GRADIENTS: findings.GRADIENT}
        table_of_feature = self._table_of_feature.get(name)
        return PairedName(name, table_of_feature, roles.get(group, group), name_b)
