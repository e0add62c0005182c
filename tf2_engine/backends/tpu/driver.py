"""The driver for TPUs. Each of the six methods of `Driver` runs one family of `tf.raw_ops`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import tensorflow as tf

from tf2_engine import errors, tf_compat
from tf2_engine.backends.interface import Activations, Gradients, Rates, ReplicaDriver
from tf2_engine.backends.tpu import topology as topologies
from tf2_engine.backends.tpu import transfer
from tf2_engine.backends.tpu.cores import (
    ALREADY_INITIALIZED,
    TpuCores,
    check_control_flow,
    check_plan,
)
from tf2_engine.backends.tpu.topology import Topology
from tf2_engine.batch import Batch
from tf2_engine.config_proto import config_proto
from tf2_engine.graph_mode import to_run
from tf2_engine.plan import FeaturePlan, Plan
from tf2_engine.tables import Table
from tf2_engine.types import Op, Strategy, Tensor


class TpuDriver(ReplicaDriver):
    """Runs a plan on a TPU, which does lookups and updates and keeps batches in order.

    Unlike `HostDriver`, this driver detects neither ids outside a feature's table nor calls in the
    wrong order. After a call in the wrong order, the device waits forever.

    Args:
        topology: by default that of the current strategy.
        initialize: False if another engine with the same tables has already configured the TPU.
    """

    strategies: ClassVar[tuple[type[Strategy], ...]] = topologies.STRATEGIES
    drops_batches = False

    def __init__(self, topology: Topology | None = None, *, initialize: bool = True) -> None:
        self._topology = topology or topologies.read_topology(tf.distribute.get_strategy())
        self._initialize = initialize
        self._config = b""
        self._transfers: dict[
            transfer.Transfer, tuple[Mapping[str, Table], Callable[[], None]]
        ] = {}

    def __repr__(self) -> str:
        tables = len(self._plan.tables) if self._plan else 0
        cores, hosts = len(self._topology.cores), len(self._topology.hosts)
        return f"<TpuDriver {tables} tables, {cores} cores on {hosts} hosts>"

    @classmethod
    def for_engine(cls, *, initialize: bool) -> TpuDriver:
        driver = cls(initialize=initialize)
        topologies.check_hardware(tf.distribute.get_strategy())
        return driver

    def cores(self, count: int | None, hosts: int | None) -> TpuCores:
        return TpuCores(self._topology, count, hosts)

    def configure(self, plan: Plan) -> Op:
        check_plan(plan, len(self._topology.hosts), len(self._topology.cores))
        config = config_proto(plan)
        if self._topology.cores_per_replica is not None:
            config.spmd_sharding.enabled = True
            config.spmd_sharding.num_cores_per_replica = self._topology.cores_per_replica
        serialized = config.SerializeToString()
        op = _configure(serialized) if self._initialize else None
        self._plan, self._config, self._transfers = plan, serialized, {}
        return to_run(op)

    def load(self, tables: Mapping[str, Table]) -> Op:
        return self._transfer(transfer.load, tables)

    def retrieve(self, tables: Mapping[str, Table]) -> Op:
        if not self._ready().training:
            return to_run(None)  # Lookups do not change rows.
        return self._transfer(transfer.retrieve, tables)

    def enqueue(self, batch: Batch, training: Tensor | bool, name: str | None = None) -> Op:
        plan = self._ready()
        computation = tf_compat.tpu_computation_graph()
        check_control_flow(computation)
        if computation is not None:
            self._check_entries(len(batch.parts), 1)
            (read,) = transfer.readers(plan, batch, None).values()

            def enqueue() -> Op:
                # The graph rewrite sets the core.
                return transfer.enqueue(plan, read, -1, transfer.mode_of(training, True), name)

            return to_run(tf.compat.v1.tpu.outside_compilation(enqueue))
        by_core = transfer.readers(plan, batch, self._topology.cores_per_replica)
        if batch.of_replicas:
            self._check_entries(len(by_core), len(self._topology.cores))
        ops = []
        for position, read in by_core.items():
            core = self._topology.cores[position]
            with tf.device(core.host):
                mode = transfer.mode_of(training)
                ops.append(transfer.enqueue(plan, read, core.ordinal, mode, name))
        return to_run(ops)

    def dequeue(self, name: str | None = None) -> Activations:
        plan = self._ready()
        activations = tf.raw_ops.RecvTPUEmbeddingActivations(
            num_outputs=len(plan.features), config=self._config
        )
        transfer.set_name(activations[0], name)
        return [list(activations)]

    def send_gradients(self, gradients: Gradients, rates: Rates, name: str | None = None) -> Op:
        plan = self._ready()
        self._check_entries(len(gradients), 1)
        op = tf.raw_ops.SendTPUEmbeddingGradients(
            # The device needs static shapes, but some ops lose them.
            inputs=[
                tf.reshape(gradient, self._activation_shape(feature))
                for feature, gradient in zip(plan.features, gradients[0], strict=True)
            ],
            learning_rates=list(rates),
            config=self._config,
        )
        transfer.set_name(op, name)
        return to_run(op)

    def _check_entries(self, number: int, expected: int) -> None:
        if number != expected:
            raise errors.InvalidInput(
                f"There must be one entry per core: expected {expected}, got {number}. Inside "
                "`strategy.run` a call is for one core; outside, `enqueue` is for all "
                f"{len(self._topology.cores)} cores."
            )

    def _activation_shape(self, feature: FeaturePlan) -> list[int]:
        first, *rest = (size for size in feature.output_shape if size is not None)
        return [first * (self._topology.cores_per_replica or 1), *rest, feature.table.dim]

    def _transfer(self, move: transfer.Transfer, tables: Mapping[str, Table]) -> Op:
        plan = self._ready()

        def transfer_all() -> list[Op]:
            return move(plan, tables, self._topology.hosts, self._config)

        if not tf.executing_eagerly():
            return to_run(transfer_all())
        traced_for, run = self._transfers.get(move, (None, None))
        if traced_for is not tables or run is None:
            # One traced call to the hosts is faster than one call per op. The function captures the
            # tables, because tf.function cannot take every kind of mapping as an argument.
            run = _as_function(transfer_all)
            self._transfers[move] = tables, run
        run()
        return None


def _configure(config: bytes) -> Op:
    initialized = tf.raw_ops.IsTPUEmbeddingInitialized()
    if not tf.executing_eagerly():
        free = tf.debugging.Assert(tf.logical_not(initialized), [ALREADY_INITIALIZED])
        with tf.control_dependencies([free]):
            return _configure_op(config)
    if initialized:
        raise errors.OutOfOrder(ALREADY_INITIALIZED)
    # A graph rewrite expands this op into ops on the hosts. Eager ops are not rewritten, hence the
    # function.
    _as_function(lambda: _configure_op(config))()
    return None


def _configure_op(config: bytes) -> Op:
    with tf.device("/device:TPU_SYSTEM:0"):
        return tf.raw_ops.ConfigureTPUEmbedding(config=config)


def _as_function(build: Callable[[], Op]) -> Callable[[], None]:
    def run() -> None:
        build()

    return tf.function(run, autograph=False)
