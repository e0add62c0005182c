"""Estimates the bytes that tasks exchange in a step, its time, and its bottleneck."""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from estimator_bridge.planner.job import Job, TableLoad
from tf2_engine.placement import FLOAT_BYTES, Placement, TablePlacement
from tf2_engine.types import Array, Object

Wire: TypeAlias = Literal["smallest", "occurrences", "cells", "summed"]
"""The form in which workers send gradients to parameter servers.

* "smallest" (the default): "occurrences" or "cells", whichever has fewer bytes.
* "occurrences": a gradient for each id of the batch.
* "cells": the gradient of each activation, sent once to each server that needs it, and for each id
  the number of its activation.
* "summed": a gradient for each distinct row. Each core adds up the gradients of a row first, so the
  results are not bitwise equal to those of one process.
"""

WIRES: tuple[Wire, ...] = get_args(Wire)

_ID_BYTES = 8
_CELL_OF_ID_BYTES = 20
"""Bytes of an id in the form "cells": the id, its activation's number, and its factor (gain)."""

_TENSORS = 4
"""Tensors exchanged with each server: wanted ids, rows, gradient ids, gradients."""
MOST_NODES = 1_000_000
"""With more nodes than this, the single graph of the chief limits the cluster."""

MEGABYTE = 1e6


@dataclasses.dataclass(frozen=True)
class Coefficients:
    """The costs of a byte, a tensor and a task.

    The defaults were fitted to ten clusters of 1 to 4 workers and 1 to 4 parameter servers on one
    busy machine with two cores and TensorFlow 2.15.1, and predict bytes within 2.6 %. The `nodes_`
    fields were fitted to the graphs of three chiefs. Update costs come from docs/benchmarks.md.

    Attributes:
        bytes_per_byte: bytes on the wire for each byte of ids, rows and gradients.
        bytes_per_tensor: header bytes of a tensor that one task sends to another.
        bytes_per_step: additional bytes on the wire in every step.
        cpu_ms_per_megabyte: CPU time for 10^6 bytes of payload, at sender and receiver together.
        cpu_ms_per_tensor, cpu_ms_per_step: additional CPU time for each tensor and each step,
            summed over all tasks.
        client_ms, client_ms_per_task: the chief's time for a step, and its additional time for each
            core and each server.
        nodes_per_core, nodes_per_table, nodes_per_part: graph nodes of each core (not counting the
            model), and its additional nodes for each table and each part of a table.
        update_ns_per_value: nanoseconds that one CPU of a parameter server (without the native ops)
            needs for each float32 of an updated row and its slots.
        update_ns_alone: the same time in a job in which a single process does all the work.
        input_bytes_per_id: bytes that a chief that reads the input sends to a worker for each id.
        task_bytes: memory of an idle task that has loaded TensorFlow.
    """

    bytes_per_byte: float = 1.0
    bytes_per_tensor: float = 652.0
    bytes_per_step: float = 2800.0
    cpu_ms_per_megabyte: float = 4.84
    cpu_ms_per_tensor: float = 0.375
    cpu_ms_per_step: float = 8.2
    client_ms: float = 1.8
    client_ms_per_task: float = 0.4
    nodes_per_core: int = 100
    nodes_per_table: int = 177
    nodes_per_part: int = 24
    update_ns_per_value: float = 6.5
    update_ns_alone: float = 2.4
    input_bytes_per_id: float = 24.0
    task_bytes: float = 400e6
    source: str = "from the project's own measurement; --calibrate measures this machine"

    def as_dict(self) -> dict[str, Object]:
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class TableTraffic:
    """The payload of one table for one core in one step, in bytes for each server: [servers]."""

    wanted: Array
    rows: Array
    gradients: Array


@dataclasses.dataclass(frozen=True)
class CoreTraffic:
    """The payload of one core in one step.

    Attributes:
        to_servers, from_servers: the bytes exchanged with each server, [servers].
        tensors: the number of tensors exchanged with each server, both ways together, [servers].
    """

    tables: dict[str, TableTraffic]
    to_servers: Array
    from_servers: Array
    tensors: Array

    @property
    def payload(self) -> float:
        return float(self.to_servers.sum() + self.from_servers.sum())


def core_traffic(job: Job, placement: Placement, *, wire: Wire = "smallest") -> CoreTraffic:
    """Computes the traffic of one core. A tensor to or from a server carries all tables."""
    tables, tensors = {}, np.zeros(placement.num_servers)
    for table in job.tables:
        placed = placement.tables[table.size.name]
        tables[table.size.name] = _table_traffic(table, placed, placement.num_servers, wire)
        tensors[list(placed.servers)] = _TENSORS
    return CoreTraffic(
        tables,
        to_servers=sum((t.wanted + t.gradients for t in tables.values()), np.zeros(len(tensors))),
        from_servers=sum((t.rows for t in tables.values()), np.zeros(len(tensors))),
        tensors=tensors,
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
    """Computes how many activations have ids on each server if ids are independent."""
    total = float(occurrences.sum())
    touched: Array = np.zeros_like(occurrences)
    for cells, ids in table.features or ((table.cells, total),):
        if total and cells:
            touched += cells * (1 - (1 - occurrences / total) ** (ids / cells))
    return np.minimum(touched, occurrences)


@dataclasses.dataclass(frozen=True)
class Machine:
    """The resources of each machine.

    Attributes:
        memory: bytes.
        network: bits per second, in each direction at once.
        cpus: number of CPU cores.
        model_ms: milliseconds that a worker needs for a step without the tables, input included.
    """

    memory: float
    network: float
    cpus: int = 16
    model_ms: float = 0.0

    def network_ms(self, sent: float, received: float) -> float:
        return max(sent, received) * 8 / self.network * 1e3


def shown(ms: float) -> str:
    return f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.3g} ms"


class TaskTime(NamedTuple):
    """A task's traffic in a step, in bytes with headers, and the time of the exchange."""

    sent: float
    received: float
    network_ms: float
    cpu_ms: float

    @property
    def ms(self) -> float:
        return max(self.network_ms, self.cpu_ms)


@dataclasses.dataclass(frozen=True)
class StepTime:
    """The parts of a step, which run one after another.

    Attributes:
        worker: the exchange on a worker; None if one process does all the work.
        servers: the exchange on each parameter server.
        update_ms: the update of rows, on the parameter server with the most updates.
        client_ms: the time of the chief's calls.
        input_ms: the chief's network time if it reads the input for the workers.
        nodes: the number of nodes in the chief's graph.
    """

    worker: TaskTime | None
    servers: tuple[TaskTime, ...]
    update_ms: float
    client_ms: float
    input_ms: float
    model_ms: float
    nodes: int

    @property
    def busiest(self) -> int:
        return max(range(len(self.servers)), key=lambda server: self.servers[server].ms)

    @property
    def exchange_ms(self) -> float:
        if self.worker is None:
            return 0.0
        return max(self.worker.ms, self.servers[self.busiest].ms)

    @property
    def ms(self) -> float:
        parts = (self.model_ms, self.input_ms, self.exchange_ms, self.update_ms, self.client_ms)
        return sum(parts)

    @property
    def limit(self) -> str:
        if self.nodes > MOST_NODES:
            return "the graph of one chief"
        parts = {
            "the model": self.model_ms,
            "updates": self.update_ms,
            "the chief's calls": self.client_ms,
            "the chief's network": self.input_ms,
        }
        if self.worker is not None:
            for name, task in (
                ("a worker's", self.worker),
                ("the busiest ps's", self.servers[self.busiest]),
            ):
                parts[f"{name} network"] = task.network_ms
                parts[f"{name} CPU"] = task.cpu_ms
        return max(parts, key=lambda name: parts[name])


def step_time(
    job: Job,
    placement: Placement,
    traffic: CoreTraffic,
    machine: Machine,
    coefficients: Coefficients,
    *,
    workers: int,
    cores: int,
    chief_reads: bool = False,
) -> StepTime:
    """Estimates the time of a step; `cores` counts the cores of all workers together."""
    per_worker = cores // workers
    bytes_of_input = cores * job.ids * coefficients.input_bytes_per_id if chief_reads else 0.0
    task = functools.partial(_task, machine, coefficients)
    worker = task(
        sent=per_worker * float(traffic.to_servers.sum()),
        received=per_worker * float(traffic.from_servers.sum()),
        tensors=per_worker * float(traffic.tensors.sum()),
    )
    servers = tuple(
        task(
            sent=cores * float(traffic.from_servers[server]),
            received=cores * float(traffic.to_servers[server]),
            tensors=cores * float(traffic.tensors[server]),
        )
        for server in range(placement.num_servers)
    )
    return StepTime(
        worker=worker,
        servers=servers,
        update_ms=_update_ms(
            values_updated(job, placement, cores), coefficients.update_ns_per_value, machine
        ),
        input_ms=machine.network_ms(bytes_of_input, 0.0),
        client_ms=coefficients.client_ms
        + coefficients.client_ms_per_task * (cores + placement.num_servers),
        model_ms=machine.model_ms,
        nodes=graph_nodes(job, placement, cores, coefficients),
    )


def time_alone(job: Job, machine: Machine, coefficients: Coefficients, cores: int = 1) -> StepTime:
    values = sum(
        float(table.load.of_cores(cores).sum()) * table.size.row_bytes / FLOAT_BYTES
        for table in job.tables
    )
    return StepTime(
        worker=None,
        servers=(),
        update_ms=_update_ms(np.array([values]), coefficients.update_ns_alone, machine),
        input_ms=0.0,
        client_ms=coefficients.client_ms + coefficients.client_ms_per_task * cores,
        model_ms=machine.model_ms,
        nodes=cores
        * (coefficients.nodes_per_core + coefficients.nodes_per_table * len(job.tables)),
    )


def values_updated(job: Job, placement: Placement, cores: int) -> Array:
    values = np.zeros(placement.num_servers)
    for table in job.tables:
        placed, rows = placement.tables[table.size.name], table.load.of_cores(cores)
        updated = on_servers(placed, table.load.rows, rows, placement.num_servers)
        values += updated * table.size.row_bytes / FLOAT_BYTES
    return values


def _update_ms(values: Array, ns_per_value: float, machine: Machine) -> float:
    return float(values.max()) * ns_per_value / 1e6 / machine.cpus


def _task(
    machine: Machine, coefficients: Coefficients, *, sent: float, received: float, tensors: float
) -> TaskTime:
    headers = coefficients.bytes_per_tensor * tensors / 2
    cpu_ms = (
        coefficients.cpu_ms_per_megabyte * (sent + received) / MEGABYTE
        + coefficients.cpu_ms_per_tensor * tensors
    ) / 2
    out, back = (coefficients.bytes_per_byte * part + headers for part in (sent, received))
    return TaskTime(out, back, machine.network_ms(out, back), cpu_ms / machine.cpus)
