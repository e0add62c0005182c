"""Stand-ins for calls about the TPU that a `TPUClusterResolver` found, without a TPU.

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import tensorflow as tf

from estimator_bridge import defaults
from estimator_bridge.run.cluster_resolver import LocalResolver

# Its classes derive from TensorFlow's, and so it is imported before their names are replaced.
from tf2_engine import log, soft_tpu
from tf2_engine.types import Object, Strategy


class _Kind(type):
    """The type of a stand-in for a strategy: instances of that are instances of the stand-in."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, (cls.__mro__[1], soft_tpu.SoftTPUStrategy))


def strategy_in_place_of(stock: type) -> type:
    """Returns a class that makes `stock` for a TPU, and else a strategy over software cores.

    It has as many cores as `run --cores` says, by default one. Making one raises InvalidSpec or
    CannotBuild where there can be no software TPU; the message says why.
    """

    def make(cls: type, tpu_cluster_resolver: Object = None, *args: Object, **kw: Object) -> Object:
        if not _is_without_tpu(tpu_cluster_resolver):
            return stock(tpu_cluster_resolver, *args, **kw)
        cores = defaults.default_cores() or 1
        log.fact(
            "TPUStrategy: there is no TPU in this process; its place takes a software TPU with %d "
            "core(s), on the CPU (run --cores, $%s).",
            *(cores, defaults.CORES_VARIABLE),
        )
        strategy: Strategy = soft_tpu.SoftTPUStrategy(cores)
        return strategy

    return _Kind("TPUStrategy", (stock,), {"__new__": make, "__doc__": stock.__doc__})


def function_in_place_of(stock: Callable[..., Object]) -> Callable[..., Object]:
    """Returns `initialize_tpu_system`, or its opposite, which has nothing to do without a TPU."""

    @functools.wraps(stock)
    def call(cluster_resolver: Object = None) -> Object:
        if not _is_without_tpu(cluster_resolver):
            return stock(cluster_resolver)
        # What a TPU would say of its cores.
        return soft_tpu.tpu_system_metadata(defaults.default_cores() or 1).topology

    return call


def _is_without_tpu(resolver: Object) -> bool:
    if resolver is None:
        return not tf.config.list_physical_devices("TPU")
    return isinstance(resolver, LocalResolver)
