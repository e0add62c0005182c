"""The emulated cores of drivers that run on hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import tensorflow as tf

from tf2_engine import errors, tf_compat
from tf2_engine.backends.interface import EngineCores, OnCores, ReadCore, Value, device_inside_run
from tf2_engine.packed import PackedBatch
from tf2_engine.types import Nest, Strategy


class HostCores(EngineCores):
    """Emulated cores: `count` cores, or one core per replica if `count` is None.

    The calls of all replicas are merged into one call for the global step, and the result is split
    among the replicas.
    """

    def __init__(self, count: int | None, hosts: int | None) -> None:
        self._strategy = tf_compat.strategy_in_scope()
        self._check_strategy(self._strategy, "TPUEmbedding")
        replicas = int(self._strategy.num_replicas_in_sync)
        self.count = replicas if count is None else count
        self.hosts = 1 if hosts is None else hosts
        if replicas not in (1, self.count):
            raise errors.InvalidSpec(
                f"`num_cores`={count}, but the strategy has {replicas} replicas. Leave `num_cores` "
                "out."
            )

    def call(
        self,
        name: str,
        values: Mapping[str, Nest],
        read: ReadCore[Value],
        function: OnCores[Value],
        *,
        from_host: bool = False,
    ) -> Nest:
        # The engine may have been made outside the scope of the strategy that is current now.
        self._check_strategy(tf.distribute.get_strategy(), f"`{name}`")
        if _in_replica_context():
            return _merge_call(name, read(values), function)
        parts = {}
        for core, part in enumerate(self._split(values)):
            with self.on_core(core):
                parts[core] = read(part)
        results = function(parts)
        return results[0] if isinstance(results, list) and len(results) == 1 else results

    def on_core(self, core: int) -> AbstractContextManager[None]:
        return nullcontext()

    def core_of(self, device: str) -> int:
        if _in_replica_context():
            raise device_inside_run(device)
        if self.count == 1:
            return 0
        devices = self._strategy.extended.worker_devices
        if device not in devices:
            raise errors.InvalidInput(
                f"`device`={device!r} is not one of the strategy's worker devices {list(devices)}."
            )
        return int(devices.index(device))

    def _check_strategy(self, strategy: Strategy, call: str) -> None:
        check_one_process(strategy, call)

    def _split(self, values: Mapping[str, Nest]) -> list[dict[str, Nest]]:
        if self.count == 1:
            return [dict(values)]
        parts = [self._parts(value, name) for name, value in values.items()]
        return [dict(zip(values, of_core, strict=True)) for of_core in zip(*parts, strict=True)]

    def _parts(self, value: Nest, name: str) -> Sequence[Nest]:
        if value is None:
            return [None] * self.count
        if self._strategy.num_replicas_in_sync > 1:
            return _by_replica(self._strategy, value)
        is_list = isinstance(value, (list, tuple)) and not isinstance(value, PackedBatch)
        if not is_list or len(value) != self.count:
            raise errors.InvalidInput(
                f"`{name}` must be a list with one entry for each of the {self.count} cores."
            )
        return value


def _in_replica_context() -> bool:
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    return replicas > 1 and not tf.distribute.in_cross_replica_context()


def _merge_call(name: str, value: Value, function: OnCores[Value]) -> Nest:
    def merged(strategy: Strategy, *values: Nest) -> Nest:
        results = function(dict(enumerate(_by_replica(strategy, values[0]))))
        if not isinstance(results, list):
            return None
        return tf.nest.map_structure(lambda *parts: tf_compat.per_replica(parts), *results)

    context = tf.distribute.get_replica_context()
    try:
        return context.merge_call(merged, args=(value,))
    except RuntimeError as error:
        if "merge_call" not in str(error):
            raise
        raise errors.ControlFlow(
            f"`{name}` is called inside control flow (a tf.cond, say) inside `strategy.run`, "
            "where replicas cannot wait for each other. Call it outside of the control flow."
        ) from error


def _by_replica(strategy: Strategy, nest: Nest) -> list[Nest]:
    count = strategy.num_replicas_in_sync
    leaves: list[Sequence[Nest]] = []
    for leaf in tf.nest.flatten(nest):
        local = strategy.experimental_local_results(leaf)
        if isinstance(leaf, (bool, int)) or leaf is None:
            local = (leaf,) * count
        if len(local) != count:
            raise errors.InvalidInput(
                f"{leaf!r} is one value for {count} replicas; pass an element of a distributed "
                "dataset's iterator, which has one value per replica."
            )
        leaves.append(local)
    return [
        tf.nest.pack_sequence_as(nest, [leaf[replica] for leaf in leaves])
        for replica in range(count)
    ]


_V1 = tf.compat.v1.distribute.experimental

_COPIES = (
    "every worker has copies of all variables and sees its own replica only, but tables exist "
    "once, and each row is updated once a step for all replicas"
)
_ON_COORDINATOR = (
    "the tables of this engine are variables of this process, the coordinator, so every row that a "
    "worker looks up would come from here, and none from a parameter server"
)
_GRAPH_PER_WORKER = (
    "every worker has a graph and a session of its own, but one process updates the tables for all "
    "replicas"
)

_CLUSTERS = (
    "For several machines use a cluster with a chief, workers and parameter servers (TF_CONFIG "
    'with "chief", "worker" and "ps"). There tf.distribute.ParameterServerStrategy with a '
    "ClusterCoordinator trains this engine, and TPUEstimator(use_tpu=True) of estimator_bridge "
    "trains without a strategy. On one machine use MirroredStrategy, OneDeviceStrategy or "
    "`num_cores`, or a TPUStrategy."
)
_IN_SCOPE = (
    "Make the engine inside `strategy.scope()` and leave `driver` out; then the parameter servers "
    "hold the tables."
)

# The columns: name in messages, class, reason, way out.
_REFUSED: tuple[tuple[str, type[Strategy], str, str], ...] = (
    (
        "MultiWorkerMirroredStrategy",
        tf.distribute.MultiWorkerMirroredStrategy,
        _COPIES,
        _CLUSTERS,
    ),
    ("MultiWorkerMirroredStrategy", _V1.MultiWorkerMirroredStrategy, _COPIES, _CLUSTERS),
    (
        "ParameterServerStrategy",
        tf.distribute.ParameterServerStrategy,
        _ON_COORDINATOR,
        _IN_SCOPE,
    ),
    (
        "ParameterServerStrategy of version 1",
        _V1.ParameterServerStrategy,
        _GRAPH_PER_WORKER,
        _CLUSTERS,
    ),
)


def check_one_process(strategy: Strategy, call: str) -> None:
    for name, kind, reason, way_out in _REFUSED:
        if isinstance(strategy, kind):
            raise errors.InvalidSpec(f"{call} is not possible under {name}: {reason}. {way_out}")
