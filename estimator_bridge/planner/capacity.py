"""Plans a cluster for a job, and computes how step times change as the cluster grows."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from estimator_bridge import errors
from estimator_bridge.planner.job import Job
from estimator_bridge.planner.step_time import (
    Coefficients,
    CoreTraffic,
    Machine,
    StepTime,
    Wire,
    core_traffic,
    step_bytes,
    step_time,
    time_alone,
)
from estimator_bridge.readable_sizes import readable
from tf2_engine.placement import (
    FLOAT_BYTES,
    LAYOUTS,
    Layout,
    Placement,
    place_tables,
    workers_of_cores,
)

TRAINING_BYTES = 100e6
"""The bytes that a parameter server needs to train and save, not counting its tables."""

RESTORING_BYTES = 100e6
"""The bytes that a parameter server needs to restore a sliced checkpoint, not counting tables.

This covers two slices and a step. Servers with 268 and 1,074 MB of tables needed 59 to 101 MB.
"""

MOST_SERVERS = 4096
MACHINES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Step times are estimated for clusters of these sizes (workers plus parameter servers)."""
_SERVER_STEPS = 1.5
"""Each number of parameter servers to try is about this many times the previous one."""


@dataclasses.dataclass(frozen=True)
class ServerMemory:
    """The memory of a parameter server, in bytes.

    Attributes:
        tables: rows and slots.
        task: TensorFlow, plus training or restoring, whichever needs more.
        unsliced: extra memory to restore a checkpoint that stores each table in one piece.
    """

    tables: int
    task: float
    unsliced: int

    @property
    def bytes(self) -> float:
        return self.tables + self.task


def server_memory(placement: Placement, server: int, coefficients: Coefficients) -> ServerMemory:
    sizes = [placement.tables[name].size for name in placement.tables_of(server)]
    # A piece is one variable of a table: its parameters or a slot.
    piece = max((size.rows * size.dim * FLOAT_BYTES for size in sizes), default=0)
    return ServerMemory(placement.server_bytes[server], _beside_tables(coefficients), piece)


def least_servers(
    job: Job, place: Callable[[int], Placement], memory: float, coefficients: Coefficients
) -> int:
    """Finds the smallest number of parameter servers that suffices if each has `memory` bytes."""
    room = memory - _beside_tables(coefficients)
    if room <= 0:
        raise errors.InvalidInput(
            f"A parameter server with {readable(int(memory))} has no room for tables: TensorFlow "
            f"and a step need {readable(int(memory - room))}. Give a larger --memory."
        )
    for size in job.sizes:
        if size.row_bytes > room:
            raise errors.InvalidInput(
                f"Table {size.name!r}: a row with its slots takes {readable(size.row_bytes)}, but "
                f"a parameter server with {readable(int(memory))} has less than that for tables. "
                "Give a larger --memory."
            )
    # Fewer servers do not have enough memory for all tables, even if the tables are spread evenly.
    for servers in range(max(1, -int(-job.bytes // room)), MOST_SERVERS + 1):
        if max(place(servers).server_bytes) <= room:
            return servers
    largest = max(job.sizes, key=lambda size: size.bytes)
    raise errors.InvalidInput(
        f"Even {MOST_SERVERS} parameter servers with {readable(int(memory))} each are not enough "
        f"for the tables. The largest table is {largest.name!r} with {readable(largest.bytes)}. "
        "Give a larger --memory."
    )


def _beside_tables(coefficients: Coefficients) -> float:
    return coefficients.task_bytes + max(TRAINING_BYTES, RESTORING_BYTES)


@dataclasses.dataclass(frozen=True)
class Options:
    """How a cluster spreads tables and sends bytes.

    Attributes:
        layout: how rows of large tables are spread, one of `placement.LAYOUTS`.
        wire: the form in which gradients are sent, one of `step_time.WIRES`.
        chief_reads: whether the chief reads the input and sends it to all workers.
    """

    layout: Layout = "div"
    wire: Wire = "smallest"
    chief_reads: bool = False


class Growth(NamedTuple):
    """A cluster of a given number of machines, with the number of servers that makes it fastest.

    A worker has as many samples per step as in the plan. A single machine has no servers.
    """

    machines: int
    workers: int
    servers: int
    time: StepTime
    samples_per_second: float


@dataclasses.dataclass(frozen=True)
class CapacityPlan:
    """The needs of a job: memory, bytes and time of a cluster's tasks.

    Attributes:
        cores: the cores of all workers together.
        servers_for_memory: the fewest parameter servers with enough memory for the tables.
        servers_for_bandwidth: the fewest servers such that no server needs longer than a worker to
            exchange a step's bytes; None if no number of servers suffices.
        worker_bytes: memory of a worker, not counting the model and the input.
        uneven: for each layout, the traffic of the busiest parameter server, relative to the mean.
        bytes: the bytes sent in a step, over all links together.
        growth: an entry for each number of machines that have enough memory for the tables.
    """

    job: Job
    machine: Machine
    coefficients: Coefficients
    options: Options
    workers: int
    cores: int
    servers: int
    placement: Placement
    traffic: CoreTraffic
    time: StepTime
    servers_for_memory: int
    servers_for_bandwidth: int | None
    memory: tuple[ServerMemory, ...]
    worker_bytes: float
    uneven: dict[Layout, float]
    bytes: float
    growth: tuple[Growth, ...]

    @property
    def fits(self) -> bool:
        return max(each.bytes for each in self.memory) <= self.machine.memory

    @property
    def samples_per_second(self) -> float:
        return _rate(self.job.samples * self.cores, self.time)

    def time_with(self, *, servers: int | None = None, options: Options | None = None) -> StepTime:
        model = _Model(self.job, self.machine, self.coefficients, options or self.options)
        return model.time(self.workers, self.cores, servers or self.servers)


def plan_capacity(
    job: Job,
    machine: Machine,
    coefficients: Coefficients | None = None,
    *,
    workers: int = 1,
    cores: int | None = None,
    servers: int | None = None,
    options: Options | None = None,
) -> CapacityPlan:
    """Plans a cluster for a job.

    Args:
        cores: the cores of all workers together; None means one per worker.
        servers: the number of parameter servers; None means the number with the shortest step.

    Raises:
        InvalidInput: no number of parameter servers has enough memory for the tables.
        InvalidSpec: the cores cannot be divided evenly among the workers.
    """
    cores = workers if cores is None else cores
    workers_of_cores(cores, workers)
    model = _Model(job, machine, coefficients or Coefficients(), options or Options())
    for_memory = least_servers(job, model.place, machine.memory, model.coefficients)
    for_bandwidth = model.servers_for_bandwidth(workers, cores)
    if servers is None:
        servers = model.best_servers(workers, cores, for_memory, for_bandwidth)
    placement, traffic = model.place(servers), model.traffic(servers)
    return CapacityPlan(
        job=job,
        machine=machine,
        coefficients=model.coefficients,
        options=model.options,
        workers=workers,
        cores=cores,
        servers=servers,
        placement=placement,
        traffic=traffic,
        time=model.time(workers, cores, servers),
        servers_for_memory=for_memory,
        servers_for_bandwidth=for_bandwidth,
        memory=tuple(server_memory(placement, s, model.coefficients) for s in range(servers)),
        worker_bytes=model.worker_bytes(traffic, cores // workers),
        uneven={layout: model.uneven(layout, servers) for layout in LAYOUTS},
        bytes=step_bytes(traffic, cores, model.coefficients),
        growth=model.growth(cores // workers, for_memory),
    )


class _Model:
    def __init__(
        self, job: Job, machine: Machine, coefficients: Coefficients, options: Options
    ) -> None:
        self.job, self.machine = job, machine
        self.coefficients, self.options = coefficients, options
        self.place = functools.cache(functools.partial(self._place, options.layout))
        self.traffic = functools.cache(lambda servers: self._traffic(self.place(servers)))

    def time(self, workers: int, cores: int, servers: int) -> StepTime:
        return step_time(
            self.job,
            self.place(servers),
            self.traffic(servers),
            self.machine,
            self.coefficients,
            workers=workers,
            cores=cores,
            chief_reads=self.options.chief_reads,
        )

    def worker_bytes(self, traffic: CoreTraffic, cores: int) -> float:
        # Activations and gradients are in memory at the same time.
        cells = sum(2 * FLOAT_BYTES * table.cells * table.size.dim for table in self.job.tables)
        return self.coefficients.task_bytes + cores * (traffic.payload + cells)

    def uneven(self, layout: Layout, servers: int) -> float:
        traffic = self._traffic(self._place(layout, servers))
        every = traffic.to_servers + traffic.from_servers
        return float(every.max() / every.mean()) if every.any() else 1.0

    def servers_for_bandwidth(self, workers: int, cores: int) -> int | None:
        def is_enough(servers: int) -> bool:
            time = self.time(workers, cores, servers)
            return time.worker is not None and time.servers[time.busiest].ms <= time.worker.ms

        enough = 1
        while not is_enough(enough):
            enough *= 2
            if enough > min(MOST_SERVERS, 8 * workers):
                return None
        too_few = enough // 2
        while enough - too_few > 1:
            middle = (enough + too_few) // 2
            if is_enough(middle):
                enough = middle
            else:
                too_few = middle
        return enough

    def best_servers(self, workers: int, cores: int, least: int, wanted: int | None) -> int:
        most = max(least, wanted or 8 * workers)
        tried = {*_numbers_of_servers(least, most), most}
        return min(sorted(tried), key=lambda servers: self.time(workers, cores, servers).ms)

    def growth(self, cores_of_worker: int, least: int) -> tuple[Growth, ...]:
        alone = time_alone(self.job, self.machine, self.coefficients, cores_of_worker)
        rows = (
            [Growth(1, 1, 0, alone, _rate(cores_of_worker * self.job.samples, alone))]
            if least == 1
            else []
        )
        best = least
        for machines in MACHINES[1:]:
            if machines <= least:
                continue
            fastest = None
            # With more machines the best number of servers never falls, and beyond that number
            # each further server makes training slower.
            for servers in _numbers_of_servers(best, machines - 1):
                cluster = self._cluster(machines - servers, cores_of_worker, servers)
                if fastest and cluster.samples_per_second < fastest.samples_per_second:
                    break
                fastest = cluster
            if fastest is not None:
                best = fastest.servers
                rows.append(fastest)
        return tuple(rows)

    def _cluster(self, workers: int, cores_of_worker: int, servers: int) -> Growth:
        cores = workers * cores_of_worker
        time = self.time(workers, cores, servers)
        rate = _rate(cores * self.job.samples, time)
        return Growth(workers + servers, workers, servers, time, rate)

    def _place(self, layout: Layout, servers: int) -> Placement:
        return place_tables(self.job.sizes, servers, layout=layout)

    def _traffic(self, placement: Placement) -> CoreTraffic:
        return core_traffic(self.job, placement, wire=self.options.wire)


def _rate(samples: int, time: StepTime) -> float:
    return samples * 1e3 / time.ms if time.ms else 0.0


def _numbers_of_servers(least: int, most: int) -> list[int]:
    largest = MACHINES[-1]
    count = int(np.log(largest) / np.log(_SERVER_STEPS)) + 1
    tried = {round(_SERVER_STEPS**power) for power in range(count)} | {least}
    return sorted(number for number in tried if least <= number <= most)
