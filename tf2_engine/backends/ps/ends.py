"""The two ends of a step of tables on parameter servers: the core's and the server's."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tf2_engine.backends.host.kernels import Raw, Read, Sent
from tf2_engine.backends.interface import Rates
from tf2_engine.backends.ps.messages import Message, Messages
from tf2_engine.backends.ps.rows import TablePart
from tf2_engine.batch import Occurrences, OccurrenceTensors
from tf2_engine.placement import TablePlacement
from tf2_engine.plan import FeaturePlan, Plan, TablePlan
from tf2_engine.tables import Table
from tf2_engine.types import Op, Tensor


class PartOfTable(NamedTuple):
    """A part of a table, by its number, that a server holds."""

    table: TablePlan
    part: int

    @property
    def placement(self) -> TablePlacement:
        """The placement of the table."""
        return placement_of(self.table)

    def of(self, tables: Mapping[str, Table]) -> TablePart:
        """Returns the variables of the part."""
        whole = tables[self.table.name]
        variables = {name: (parts[self.part],) for name, parts in whole.variables.items()}
        return TablePart(whole.plan, whole.strategy, variables, self.placement, self.part)


class Asked(abc.ABC):
    """A lookup of one core whose rows are on their way."""

    requests: Mapping[int, Tensor]
    """By server the ids that the core asks for, packed; see `messages.pack_ids`."""

    @abc.abstractmethod
    def activations(self, answers: Mapping[int, Tensor]) -> list[Tensor]:
        """Returns the activation of each piece of the lookup, from the rows of each server."""


class CoreEnd(abc.ABC):
    """The part of a step that a core computes, with ops on its device.

    Args:
        plan: of the engine. The tables have a placement.
        servers: how many there are.
    """

    def __init__(self, plan: Plan, servers: int) -> None:
        self._plan, self._servers = plan, servers

    @abc.abstractmethod
    def occurrences(self, pieces: Sequence[Raw]) -> list[Occurrences]:
        """Returns the occurrences of each feature; see `KernelSet.occurrences`."""

    @abc.abstractmethod
    def as_tensors(self, feature: FeaturePlan, occurrences: Occurrences) -> OccurrenceTensors:
        """Returns occurrences as they wait in a queue; see `KernelSet.as_tensors`."""

    def keeps_splits(self, feature: FeaturePlan) -> bool:
        """Returns whether `as_tensors` may have row splits; see `KernelSet.keeps_splits`."""
        return False

    @abc.abstractmethod
    def ask(self, pieces: Sequence[Read]) -> Asked:
        """Begins a lookup of the features of a core."""

    @abc.abstractmethod
    def send(self, pieces: Sequence[Sent]) -> Messages:
        """Returns the gradients of the features of a core, by server."""

    def _on_servers(self, features: Sequence[FeaturePlan]) -> dict[int, list[PartOfTable]]:
        """Returns by server the parts of the tables of features; none where there are no such."""
        tables = tables_of(self._plan, features)
        here = {server: parts_on(tables, server) for server in range(self._servers)}
        return {server: parts for server, parts in here.items() if parts}


class ServerEnd(abc.ABC):
    """The part of a step that a server computes, with ops on its device.

    Args:
        tables: the variables, by name of the table, of which those of the server are used.
    """

    def __init__(self, tables: Mapping[str, Table]) -> None:
        self._tables = tables

    @abc.abstractmethod
    def rows(self, here: Sequence[PartOfTable], request: Tensor) -> Tensor:
        """Returns the rows that a core has asked for, packed; see `messages.pack_rows`."""

    @abc.abstractmethod
    def update(
        self, here: Sequence[PartOfTable], messages: Sequence[Message], rates: Rates
    ) -> list[Op]:
        """Updates the parts of a server by what all cores sent; returns the ops."""


def placement_of(table: TablePlan) -> TablePlacement:
    """Returns the placement of a table on parameter servers."""
    assert table.placement is not None
    return table.placement


def tables_of(plan: Plan, features: Sequence[FeaturePlan]) -> list[TablePlan]:
    """Returns the tables of features, each once, in their order in the plan."""
    names = {feature.table.name for feature in features}
    return [table for table in plan.tables if table.name in names]


def parts_on(tables: Sequence[TablePlan], server: int) -> list[PartOfTable]:
    """Returns the parts of tables that a server holds, in the order of the tables."""
    return [
        PartOfTable(table, placement_of(table).servers.index(server))
        for table in tables
        if server in placement_of(table).servers
    ]
