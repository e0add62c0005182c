"""The expected time of a step, and the part that it waits for. Pure."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from estimator_bridge.planner.coefficients import MEGABYTE, Coefficients
from estimator_bridge.planner.job import Job
from estimator_bridge.planner.traffic import CoreTraffic, graph_nodes, on_servers
from tf2_engine.placement import FLOAT_BYTES, Placement
from tf2_engine.types import Array

MOST_NODES = 1_000_000
"""Beyond so many nodes the one graph of a chief is what limits the cluster."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """The resources of each machine.

    Attributes:
        memory: bytes.
        network: bits a second, in each direction at once.
        cpus: cores of its processor.
        model_ms: how long a worker takes for its part of a step without the tables, input
            included.
    """

    memory: float
    network: float
    cpus: int = 16
    model_ms: float = 0.0

    def network_ms(self, sent: float, received: float) -> float:
        """Returns how long so many bytes take, both directions at once."""
        return max(sent, received) * 8 / self.network * 1e3


def shown(ms: float) -> str:
    """Returns milliseconds for people: three digits, and none behind the point from 100 on."""
    return f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.3g} ms"


class TaskTime(NamedTuple):
    """The traffic and the time of one task in a step's exchange.

    Attributes:
        sent, received: bytes, headers included.
        network_ms: what they take of its network.
        cpu_ms: what calls and bytes take of all of its processor's cores.
    """

    sent: float
    received: float
    network_ms: float
    cpu_ms: float

    @property
    def ms(self) -> float:
        """The longer of network and processor."""
        return max(self.network_ms, self.cpu_ms)


@dataclasses.dataclass(frozen=True)
class StepTime:
    """The parts of a step; they follow each other.

    Attributes:
        worker: a worker in the exchange; None where one process does all.
        servers: the same for each parameter server.
        update_ms: the update of rows, on the parameter server that has most of it.
        client_ms: the chief's calls.
        input_ms: the chief's network, where it reads the input and sends ids to the workers.
        model_ms: the model and the input, on a worker.
        nodes: of the chief's graph.
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
        """The number of the parameter server whose exchange takes longest."""
        return max(range(len(self.servers)), key=lambda server: self.servers[server].ms)

    @property
    def exchange_ms(self) -> float:
        """The time of ids, rows and gradients between the tasks: that of the slowest task."""
        if self.worker is None:
            return 0.0
        return max(self.worker.ms, self.servers[self.busiest].ms)

    @property
    def ms(self) -> float:
        """The time of a step."""
        parts = (self.model_ms, self.input_ms, self.exchange_ms, self.update_ms, self.client_ms)
        return sum(parts)

    @property
    def limit(self) -> str:
        """The bottleneck of a step."""
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
    """Returns the expected time of a step with so many workers, and cores of all workers.

    With `chief_reads` the chief sends each worker its input, which it reads itself otherwise.

    Source: bytes and CPU are linear in payload and tensors; half of the CPU is at either end, and
    half of the headers go either way. Tasks work at the same time, each on its own machine.
    """
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
    """Returns the expected time of a step where one process does all."""
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
    """Returns the float32 values that each parameter server updates in a step, [servers].

    A row is updated once for all cores, its slots with it.
    """
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
