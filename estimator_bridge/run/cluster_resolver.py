"""Stand-ins for `TPUClusterResolver`, `TPUStrategy` and the like, for machines without a TPU."""

from __future__ import annotations

import functools
from collections.abc import Callable

import tensorflow as tf

from estimator_bridge import defaults

# Import soft_tpu before names are replaced: its classes derive from TensorFlow's own classes.
from tf2_engine import log, soft_tpu
from tf2_engine.types import Message, Object, Strategy


class LocalResolver(tf.distribute.cluster_resolver.ClusterResolver):
    """A cluster resolver for this process only. It does not use the network, and finds no TPU."""

    def __init__(
        self,
        tpu: str | None = None,
        zone: str | None = None,
        project: str | None = None,
        job_name: str = "worker",
        **settings: Object,
    ) -> None:
        self.task_type = job_name
        self.task_id = 0
        log.fact(
            "TPUClusterResolver(tpu=%r, zone=%r, project=%r): this process has no TPU, and does "
            "not look for one elsewhere; the host engine takes its place.",
            *(tpu, zone, project),
        )

    @classmethod
    def connect(
        cls, tpu: str | None = None, zone: str | None = None, project: str | None = None
    ) -> Object:
        return cls(tpu, zone, project)

    def get_master(self) -> str:
        return ""

    def get_job_name(self) -> str:
        return self.task_type

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        return self.get_master()

    def cluster_spec(self) -> tf.train.ClusterSpec:
        return tf.train.ClusterSpec({})

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Message | None = None,
    ) -> dict[str, int]:
        return {"TPU": 0}

    def __repr__(self) -> str:
        return "<TPUClusterResolver without a TPU, this process>"


def in_place_of(stock: type) -> type:
    def make(cls: type, *args: Object, **settings: Object) -> Object:
        if tf.config.list_physical_devices("TPU"):
            return stock(*args, **settings)
        return object.__new__(cls)

    return type("TPUClusterResolver", (LocalResolver,), {"__new__": make})


TPUClusterResolver = in_place_of(tf.distribute.cluster_resolver.TPUClusterResolver)
"""Makes TensorFlow's resolver on a TPU, and a `LocalResolver` elsewhere."""


class _Kind(type):
    """Makes instances of the real strategy count as instances of its stand-in."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, (cls.__mro__[1], soft_tpu.SoftTPUStrategy))


def strategy_in_place_of(stock: type) -> type:
    """Makes a class that creates `stock` on a TPU, and a `SoftTPUStrategy` elsewhere."""

    def make(cls: type, tpu_cluster_resolver: Object = None, *args: Object, **kw: Object) -> Object:
        if not _is_without_tpu(tpu_cluster_resolver):
            return stock(tpu_cluster_resolver, *args, **kw)
        cores = defaults.default_cores() or 1
        log.fact(
            "TPUStrategy: this process has no TPU; a software TPU with %d core(s) on the CPU takes "
            "its place (set the number of cores with `run --cores` or $%s).",
            *(cores, defaults.CORES_VARIABLE),
        )
        strategy: Strategy = soft_tpu.SoftTPUStrategy(cores)
        return strategy

    return _Kind("TPUStrategy", (stock,), {"__new__": make, "__doc__": stock.__doc__})


def function_in_place_of(stock: Callable[..., Object]) -> Callable[..., Object]:
    @functools.wraps(stock)
    def call(cluster_resolver: Object = None) -> Object:
        if not _is_without_tpu(cluster_resolver):
            return stock(cluster_resolver)
        # A TPU would return the same description of its cores.
        return soft_tpu.tpu_system_metadata(defaults.default_cores() or 1).topology

    return call


def _is_without_tpu(resolver: Object) -> bool:
    if resolver is None:
        return not tf.config.list_physical_devices("TPU")
    return isinstance(resolver, LocalResolver)
