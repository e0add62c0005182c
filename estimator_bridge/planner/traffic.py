"""The bytes and tensors of a step between workers and parameter servers. Pure."""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias, get_args

import numpy as np

from estimator_bridge.planner.coefficients import Coefficients
from estimator_bridge.planner.job import Job, TableLoad
from tf2_engine.placement import FLOAT_BYTES, Placement, TablePlacement
from tf2_engine.types import Array

Wire: TypeAlias = Literal["smallest", "occurrences", "cells", "summed"]
"""The form of gradients on their way to a parameter server; those of the driver of tables on these.

* "smallest": occurrences or cells, whichever has fewer bytes; the driver's default.
* "occurrences": a gradient for each id.
* "cells": a gradient for each activation, once to each server, and for each id its activation.
* "summed": a gradient for each distinct row. Sums are then associated by core, so that numbers are
  not those of one process to the bit.
"""

WIRES: tuple[Wire, ...] = get_args(Wire)

_ID_BYTES = 8
_CELL_OF_ID_BYTES = 20
"""Of an id in the form of cells: the id, its cell and its gain."""

_TENSORS = 4
"""Between a core and a part of a table: ids wanted, rows, ids of gradients, and gradients."""


@dataclasses.dataclass(frozen=True)
class TableTraffic:
    """The payload of one table, of one core in one step, by parameter server: bytes [servers].

    Attributes:
        wanted: ids of the rows that the core asks for.
        rows: those rows.
        gradients: what the core sends back.
    """

    wanted: Array
    rows: Array
    gradients: Array


@dataclasses.dataclass(frozen=True)
class CoreTraffic:
    """The payload of one core in one step.

    Attributes:
        tables: by name.
        to_servers: bytes from the core to each server, [servers].
        from_servers: bytes from each server to the core, [servers].
        tensors: between the core and each server, both ways, [servers].
    """

    tables: dict[str, TableTraffic]
    to_servers: Array
    from_servers: Array
    tensors: Array

    @property
    def payload(self) -> float:
        """The bytes of ids, rows and gradients, both ways."""
        return float(self.to_servers.sum() + self.from_servers.sum())


def core_traffic(
    job: Job, placement: Placement, *, wire: Wire = "smallest", fused: bool = True
) -> CoreTraffic:
    """Returns the traffic of one core of a job in a step.

    Args:
        wire: the form of gradients.
        fused: whether all tables share one tensor of a kind between a core and a server.
    """
    tables, tensors = {}, np.zeros(placement.num_servers)
    for table in job.tables:
        placed = placement.tables[table.size.name]
        tables[table.size.name] = _table_traffic(table, placed, placement.num_servers, wire)
        tensors[list(placed.servers)] += _TENSORS
    return CoreTraffic(
        tables,
        to_servers=sum((t.wanted + t.gradients for t in tables.values()), np.zeros(len(tensors))),
        from_servers=sum((t.rows for t in tables.values()), np.zeros(len(tensors))),
        tensors=np.minimum(tensors, _TENSORS) if fused else tensors,
    )


def step_bytes(traffic: CoreTraffic, cores: int, coefficients: Coefficients) -> float:
    """Returns the bytes of a step on all links together, headers included."""
    return (
        coefficients.bytes_per_byte * cores * traffic.payload
        + coefficients.bytes_per_tensor * cores * float(traffic.tensors.sum())
        + coefficients.bytes_per_step
    )


def graph_nodes(job: Job, placement: Placement, cores: int, coefficients: Coefficients) -> int:
    """Returns the nodes of the graph that one chief makes for all cores, without the model."""
    parts = sum(len(placement.tables[table.size.name].servers) for table in job.tables)
    of_core = (
        coefficients.nodes_per_core
        + coefficients.nodes_per_table * len(job.tables)
        + coefficients.nodes_per_part * parts
    )
    return cores * of_core


def on_servers(placed: TablePlacement, rows: Array, amounts: Array, num_servers: int) -> Array:
    """Returns the sum of amounts, each of which belongs to a row, by parameter server."""
    servers = np.array(placed.servers)[placed.part_of(rows)]
    sums: Array = np.bincount(servers, weights=amounts, minlength=num_servers)
    return sums


def _table_traffic(
    table: TableLoad, placed: TablePlacement, num_servers: int, wire: Wire
) -> TableTraffic:
    load, row = table.load, FLOAT_BYTES * table.size.dim
    distinct = on_servers(placed, load.rows, load.distinct, num_servers)
    occurrences = on_servers(placed, load.rows, load.occurrences, num_servers)
    by_id: Array = occurrences * (_ID_BYTES + row)
    by_cell: Array = _cells(table, occurrences) * row + occurrences * _CELL_OF_ID_BYTES
    gradients: dict[Wire, Array] = {
        "smallest": np.minimum(by_id, by_cell),
        "occurrences": by_id,
        "cells": by_cell,
        "summed": distinct * (_ID_BYTES + row),
    }
    return TableTraffic(distinct * _ID_BYTES, distinct * row, gradients[wire])


def _cells(table: TableLoad, occurrences: Array) -> Array:
    """Returns how many cells have an id on each server; ids of a cell are taken as independent."""
    total = float(occurrences.sum())
    touched: Array = np.zeros_like(occurrences)
    for cells, ids in table.features or ((table.cells, total),):
        if total and cells:
            touched += cells * (1 - (1 - occurrences / total) ** (ids / cells))
    return np.minimum(touched, occurrences)
