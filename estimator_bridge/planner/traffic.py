"""Computes the bytes and tensors that workers and parameter servers exchange in a step."""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias, get_args

import numpy as np

from estimator_bridge.planner.coefficients import Coefficients
from estimator_bridge.planner.job import Job, TableLoad
from tf2_engine.placement import FLOAT_BYTES, Placement, TablePlacement
from tf2_engine.types import Array

Wire: TypeAlias = Literal["smallest", "occurrences", "cells", "summed"]
"""The form in which the driver sends gradients to parameter servers.

* "smallest": occurrences or cells, whichever has fewer bytes; the driver's default.
* "occurrences": a gradient for each id of the batch.
* "cells": the gradient of each activation, once for each server, and for each id the number of
  its activation.
* "summed": a gradient for each distinct row. Gradients are then added core by core, so results are
  not bit-identical with one process.
"""

WIRES: tuple[Wire, ...] = get_args(Wire)

_ID_BYTES = 8
_CELL_OF_ID_BYTES = 20
"""Bytes of one id in the form "cells": the id, its activation's number, and its factor."""

_TENSORS = 4
"""Tensors exchanged for each part of a table: wanted ids, rows, gradient ids, gradients."""


@dataclasses.dataclass(frozen=True)
class TableTraffic:
    """The payload of one table, for one core in one step: bytes for each server, [servers]."""

    wanted: Array
    rows: Array
    gradients: Array


@dataclasses.dataclass(frozen=True)
class CoreTraffic:
    """The payload of one core in one step.

    Attributes:
        to_servers, from_servers: the bytes that the core sends to each server, and receives from
            it, [servers].
        tensors: the number of tensors exchanged with each server, both ways together, [servers].
    """

    tables: dict[str, TableTraffic]
    to_servers: Array
    from_servers: Array
    tensors: Array

    @property
    def payload(self) -> float:
        return float(self.to_servers.sum() + self.from_servers.sum())


def core_traffic(
    job: Job, placement: Placement, *, wire: Wire = "smallest", fused: bool = True
) -> CoreTraffic:
    """Computes the traffic of one core. With `fused`, all tables share the tensors to a server."""
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
    return (
        coefficients.bytes_per_byte * cores * traffic.payload
        + coefficients.bytes_per_tensor * cores * float(traffic.tensors.sum())
        + coefficients.bytes_per_step
    )


def graph_nodes(job: Job, placement: Placement, cores: int, coefficients: Coefficients) -> int:
    parts = sum(len(placement.tables[table.size.name].servers) for table in job.tables)
    of_core = (
        coefficients.nodes_per_core
        + coefficients.nodes_per_table * len(job.tables)
        + coefficients.nodes_per_part * parts
    )
    return cores * of_core


def on_servers(placed: TablePlacement, rows: Array, amounts: Array, num_servers: int) -> Array:
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
    """Computes how many activations are expected to use each group of rows.

    Ids are assumed to be independent.
    """
    total = float(occurrences.sum())
    touched: Array = np.zeros_like(occurrences)
    for cells, ids in table.features or ((table.cells, total),):
        if total and cells:
            touched += cells * (1 - (1 - occurrences / total) ** (ids / cells))
    return np.minimum(touched, occurrences)
