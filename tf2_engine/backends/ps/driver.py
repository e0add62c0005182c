"""The driver for parameter servers, in one graph for all tasks of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from tf2_engine import errors
from tf2_engine.backends.host.driver import HostDriver
from tf2_engine.backends.host.kernels import KernelSet
from tf2_engine.backends.ps.cores import PsCores
from tf2_engine.backends.ps.kernels import ServerKernels
from tf2_engine.backends.ps.messages import WIRES, Wire
from tf2_engine.placement import SMALL_TABLE_BYTES, Layout, Servers
from tf2_engine.plan import Plan

NativeTasks: TypeAlias = Callable[[], Collection[str]]
"""Finds the devices of the tasks that have the native ops."""


class PsDriver(HostDriver):
    """Keeps tables on parameter servers and runs the cores on workers.

    One client builds the graph of a step, and its session runs the graph on the tasks of a cluster.
    A core's ids are read and combined on its worker; a row is updated beside its slots, on its
    parameter server. Results equal those of `HostDriver(native=False)` with the same number of
    cores bit for bit, except that powers (FTRL, AdagradMomentum) may be off by a unit in the last
    place.

    With pipelining, each core's part of the pending update waits on its worker.

    Args:
        workers: the devices of the workers, such as "/job:worker/task:0/device:CPU:0". Each has one
            core, or several consecutive ones if `num_cores` says so.
        servers: the devices of the parameter servers.
        layout: how rows of large tables are spread over the servers; see `placement`.
        whole_up_to: tables of up to this many bytes, slots included, are on one server as a whole.
        wire: the form in which gradients are sent; see `messages`. "summed" adds up each core's
            gradients first, which rounds differently if there are several cores and gradient
            accumulation.
        native: returns the devices that have the native ops, when the engine is configured. All
            others use TensorFlow's ops, which compute the same numbers.
    """

    def __init__(
        self,
        workers: Sequence[str],
        servers: Sequence[str],
        *,
        layout: Layout = "div",
        whole_up_to: int = SMALL_TABLE_BYTES,
        wire: Wire = "smallest",
        native: NativeTasks | None = None,
    ) -> None:
        super().__init__(native=False)
        for name, devices in (("workers", workers), ("servers", servers)):
            if not devices:
                raise errors.InvalidSpec(f"`{name}` must name at least one device, got none.")
        if wire not in WIRES:
            names = ", ".join(map(repr, WIRES))
            raise errors.InvalidSpec(f"`wire` must be one of {names}, got {wire!r}.")
        self._workers = tuple(workers)
        self.servers = Servers(tuple(servers), layout, whole_up_to)
        self._wire: Wire = wire
        self._tasks = native
        self._cores: PsCores | None = None

    def __repr__(self) -> str:
        kernels = self._configured.kernels if self._configured else ServerKernels
        return (
            f"<PsDriver {len(self._tables)} tables, {len(self._workers)} workers, "
            f"{len(self.servers.devices)} servers, {self.servers.layout}, {kernels.name}>"
        )

    def cores(self, count: int | None, hosts: int | None) -> PsCores:
        self._cores = PsCores(count, hosts, self._workers, self.servers)
        return self._cores

    def _kernels_for(self, plan: Plan) -> KernelSet:
        assert self._cores is not None
        native = frozenset() if self._tasks is None else frozenset(self._tasks())
        return ServerKernels(plan, self._tables, self._cores, wire=self._wire, native=native)
