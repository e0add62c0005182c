"""The plan of a cluster for a job: memory, bytes and time of tasks, now and as it grows. Pure."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from estimator_bridge.planner.coefficients import Coefficients
from estimator_bridge.planner.job import Job
from estimator_bridge.planner.memory import (
    MOST_SERVERS,
    ServerMemory,
    least_servers,
    server_memory,
)
from estimator_bridge.planner.step_time import Machine, StepTime, step_time, time_alone
from estimator_bridge.planner.traffic import CoreTraffic, Wire, core_traffic, step_bytes
from tf2_engine.placement import (
    FLOAT_BYTES,
    LAYOUTS,
    Layout,
    Placement,
    place_tables,
    workers_of_cores,
)

MACHINES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""The numbers of machines whose step time is expected: workers and parameter servers together."""

_SERVER_STEPS = 1.5
"""Numbers of parameter servers that are tried grow by this factor."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of a plan: how tables and bytes are spread.

    Attributes:
        layout: of the rows of large tables, one of `placement.LAYOUTS`.
        wire: the form of gradients, one of `traffic.WIRES`.
        fused: whether all tables share one tensor of a kind between a core and a server.
        chief_reads: whether the chief reads the input for all workers, and sends it.
    """

    layout: Layout = "div"
    wire: Wire = "smallest"
    fused: bool = True
    chief_reads: bool = False


class Growth(NamedTuple):
    """A cluster of some machines, with as many parameter servers as make it fastest.

    Every worker has the samples that a worker of the plan has. With one machine `workers` is 1 and
    `servers` 0: one process does all.
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
        cores: of all workers together; batches are spread over them.
        servers_for_memory: the least number of parameter servers that hold the tables.
        servers_for_bandwidth: the least number of which the busiest takes no longer for a step's
            exchange than a worker; None if that is so with no number.
        memory: of each parameter server.
        worker_bytes: of a worker, beside what the model and the input take.
        uneven: the bytes of the busiest parameter server over the mean, for each layout.
        bytes: of a step on all links together.
        growth: for each of some numbers of machines that hold the tables.
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
        """Whether every parameter server has the memory that it needs."""
        return max(each.bytes for each in self.memory) <= self.machine.memory

    @property
    def samples_per_second(self) -> float:
        """The samples of all cores in a second."""
        return _rate(self.job.samples * self.cores, self.time)

    def time_with(self, *, servers: int | None = None, options: Options | None = None) -> StepTime:
        """Returns the time of a step with another number of parameter servers, or other options."""
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
    """Returns the plan of a cluster.

    Args:
        workers: the number of workers.
        cores: of all workers together; None is one for each worker.
        servers: the number of parameter servers; None takes, of those that hold the tables, the
            one with which a step is shortest.

    Raises:
        InvalidInput: no number of parameter servers holds the tables.
        InvalidSpec: the workers do not divide the cores.
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
    """A job on clusters of any size; values that depend on the parameter servers alone are kept."""

    def __init__(
        self, job: Job, machine: Machine, coefficients: Coefficients, options: Options
    ) -> None:
        self.job, self.machine = job, machine
        self.coefficients, self.options = coefficients, options
        self.place = functools.cache(functools.partial(self._place, options.layout))
        self.traffic = functools.cache(lambda servers: self._traffic(self.place(servers)))

    def time(self, workers: int, cores: int, servers: int) -> StepTime:
        """Returns the time of a step."""
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
        """Returns the memory of a worker of so many cores: its messages, and activations.

        Activations and their gradients are there at once.
        """
        cells = sum(2 * FLOAT_BYTES * table.cells * table.size.dim for table in self.job.tables)
        return self.coefficients.task_bytes + cores * (traffic.payload + cells)

    def uneven(self, layout: Layout, servers: int) -> float:
        """Returns the bytes of the busiest parameter server over the mean."""
        traffic = self._traffic(self._place(layout, servers))
        every = traffic.to_servers + traffic.from_servers
        return float(every.max() / every.mean()) if every.any() else 1.0

    def servers_for_bandwidth(self, workers: int, cores: int) -> int | None:
        """Returns the least number of parameter servers that are not slower than a worker."""

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
        """Returns the number of parameter servers, `least` or more, that makes a step shortest."""
        most = max(least, wanted or 8 * workers)
        tried = {*_numbers_of_servers(least, most), most}
        return min(sorted(tried), key=lambda servers: self.time(workers, cores, servers).ms)

    def growth(self, cores_of_worker: int, least: int) -> tuple[Growth, ...]:
        """Returns the fastest cluster for each number of machines."""
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
            # More machines never want fewer parameter servers, and beyond the best number every
            # one is worse.
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
        options = self.options
        return core_traffic(self.job, placement, wire=options.wire, fused=options.fused)


def _rate(samples: int, time: StepTime) -> float:
    return samples * 1e3 / time.ms if time.ms else 0.0


def _numbers_of_servers(least: int, most: int) -> list[int]:
    """Returns the numbers of parameter servers to try, the same ones for all clusters."""
    largest = MACHINES[-1]
    count = int(np.log(largest) / np.log(_SERVER_STEPS)) + 1
    tried = {round(_SERVER_STEPS**power) for power in range(count)} | {least}
    return sorted(number for number in tried if least <= number <= most)
