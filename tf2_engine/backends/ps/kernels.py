"""A step with tables on parameter servers, which send rows to the cores and receive gradients.

For each row, the server sums the gradients of all cores, in the order of cores, and applies the
rule once. TensorFlow computes powers (FTRL, AdagradMomentum) differently for the last elements of a
vector, so these elements may differ from those of `HostDriver`.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager

import tensorflow as tf

from tf2_engine.backends.host.kernels import KernelSet, OfFeature, StepOccurrences, tables_of
from tf2_engine.backends.interface import Activations, Gradients, Rates
from tf2_engine.backends.ps.cores import ServerCores
from tf2_engine.backends.ps.ends import CoreEnd, PartOfTable, ServerEnd, parts_on
from tf2_engine.backends.ps.messages import Message, Messages, Wire
from tf2_engine.backends.ps.native_ends import NativeCoreEnd, NativeServerEnd
from tf2_engine.batch import KernelColumns, Occurrences
from tf2_engine.graph_mode import run_after
from tf2_engine.native import loading
from tf2_engine.plan import FeaturePlan, Plan, TablePlan
from tf2_engine.tables import Table
from tf2_engine.types import Op, Tensor


class ServerKernels(KernelSet):
    """The kernel set for tables on servers. Servers read and update rows, and workers do the rest.

    Args:
        wire: the form in which gradients are sent.
        native: the devices that have native ops. Cores use native ops only if the devices of all
            cores have them.
    """

    name = "TensorFlow's ops"

    def __init__(
        self,
        plan: Plan,
        tables: Mapping[str, Table],
        cores: ServerCores,
        *,
        wire: Wire = "occurrences",
        native: Set[str] = frozenset(),
    ) -> None:
        self._plan, self._tables, self._cores = plan, tables, cores
        self._reads: list[Op] = []  # The ops of the latest lookup.
        self._before_update: Sequence[Op] = ()
        ops = loading.load().ops if native else None
        servers = cores.servers.devices
        self._core = CoreEnd(plan, len(servers), wire)
        plain = ServerEnd(tables, wire)
        self._servers = [plain] * len(servers)
        if ops is not None:
            if native >= set(cores.devices):
                self._core = NativeCoreEnd(plan, len(servers), wire, ops)
            fused = NativeServerEnd(tables, wire, ops)
            self._servers = [fused if device in native else plain for device in servers]
        ends = {
            isinstance(self._core, NativeCoreEnd),
            *(each is not plain for each in self._servers),
        }
        names = {False: "TensorFlow's ops", True: "native ops"}
        self.name = " and ".join(names[end] for end in sorted(ends))

    def on_core(self, core: int) -> AbstractContextManager[None]:
        return self._cores.on_core(core)

    def together(self, num_cores: int) -> Sequence[Sequence[int]]:
        return [[core] for core in range(num_cores)]

    def occurrences(self, features: Sequence[OfFeature]) -> list[Occurrences]:
        return self._core.occurrences(features)

    def as_tensors(self, occurrences: Occurrences) -> KernelColumns:
        return self._core.as_tensors(occurrences)

    def keeps_splits(self, feature: FeaturePlan) -> bool:
        return self._core.keeps_splits(feature)

    def look_up(self, per_core: StepOccurrences) -> Activations:
        self._reads = []
        activations = []
        for core, occurrences in enumerate(per_core):
            with self.on_core(core):
                activations.append(self._look_up_on_core(occurrences))
        return activations

    def reads(self, activations: Activations) -> Sequence[Op]:
        return tuple(self._reads)

    @contextlib.contextmanager
    def after(self, ops: Sequence[Op]) -> Iterator[None]:
        # A task reads and writes only its own rows, so it does not wait for other tasks.
        before, self._before_update = self._before_update, ops
        try:
            yield
        finally:
            self._before_update = before

    def update(self, per_core: StepOccurrences, gradients: Gradients, rates: Rates) -> list[Op]:
        return self.apply(self.messages(per_core, gradients), rates)

    def servers_in_use(self) -> list[int]:
        tables = self._tables_with_features()
        count = len(self._cores.servers.devices)
        return [server for server in range(count) if parts_on(tables, server)]

    def messages(self, per_core: StepOccurrences, gradients: Gradients) -> list[Messages]:
        messages = []
        for core, of_core in enumerate(zip(per_core, gradients, strict=True)):
            with self.on_core(core):
                messages.append(self._core.send(*of_core))
        return messages

    def apply(self, messages: Sequence[Messages], rates: Rates) -> list[Op]:
        tables = self._tables_with_features()
        ops: list[Op] = []
        for server, device in enumerate(self._cores.servers.devices):
            here = parts_on(tables, server)
            if not here:
                continue
            with tf.device(device):
                there = tf.no_op().device
            reads = [read for read in self._before_update if read.device == there]
            of_server = [of_core[server] for of_core in messages]
            with tf.device(device), run_after(reads):
                ops += self._update_on(server, here, of_server, rates)
        return ops

    def _look_up_on_core(self, occurrences: Sequence[Occurrences]) -> list[Tensor]:
        asked = self._core.ask(occurrences)
        tables = tables_of(self._plan, [one.feature for one in occurrences])
        answers = {}
        for server, request in asked.requests.items():
            with tf.device(self._cores.servers.devices[server]):
                answers[server] = self._servers[server].rows(parts_on(tables, server), request)
        self._reads += answers.values()
        return asked.activations(answers)

    def _update_on(
        self,
        server: int,
        here: Sequence[PartOfTable],
        messages: Sequence[Message],
        rates: Rates,
    ) -> list[Op]:
        return self._servers[server].update(here, messages, rates)

    def _tables_with_features(self) -> list[TablePlan]:
        return tables_of(self._plan, self._plan.features)


class LockedKernels(ServerKernels):
    """Kernels for functions that may update a server at the same time. Each update holds a lock."""

    def __init__(self, plan: Plan, tables: Mapping[str, Table], cores: ServerCores) -> None:
        super().__init__(plan, tables, cores)
        # A task keeps named resources until it ends, so a unique name keeps engines from sharing a
        # lock.
        name = f"tf2_engine/{uuid.uuid4().hex}"
        self._mutexes = []
        for device in cores.servers.devices:
            with tf.init_scope(), tf.device(device):
                self._mutexes.append(tf.raw_ops.MutexV2(container="", shared_name=name))

    def _update_on(
        self,
        server: int,
        here: Sequence[PartOfTable],
        messages: Sequence[Message],
        rates: Rates,
    ) -> list[Op]:
        # Wait for everything from the worker before taking the lock, so that a slow or dead worker
        # does not block the others.
        received = [(tf.identity(ids), tf.identity(gradients)) for ids, gradients in messages]
        rates = [tf.identity(rate) for rate in rates]
        with run_after([*tf.nest.flatten(received), *rates]):
            lock = tf.raw_ops.MutexLock(mutex=self._mutexes[server])
            with run_after([lock]):
                ops = super()._update_on(server, here, received, rates)
            # The lock is held until an op consumes it.
            with run_after(ops):
                return [tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)]
