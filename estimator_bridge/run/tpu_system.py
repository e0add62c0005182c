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

# Its classes derive from TensorFlow's, so it must be imported before their names are replaced.
from tf2_engine import log, soft_tpu
from tf2_engine.types import Object, Strategy


class _Kind(type):
    """Makes instances of the real strategy count as instances of its stand-in."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, (cls.__mro__[1], soft_tpu.SoftTPUStrategy))


def strategy_in_place_of(stock: type) -> type:
    """Makes a class that creates `stock` on a TPU, and a strategy over software cores elsewhere.

    The strategy has as many cores as `run --cores` says, one by default. Its constructor raises
    InvalidSpec or CannotBuild where the software TPU cannot run.
    """

    def make(cls: type, tpu_cluster_resolver: Object = None, *args: Object, **kw: Object) -> Object:
        if not _is_without_tpu(tpu_cluster_resolver):
            return stock(tpu_cluster_resolver, *args, **kw)
        cores = defaults.default_cores() or 1
        log.fact(
            "TPUStrategy: this process has no TPU; a software TPU with %d core(s) on the CPU takes "
            "its place (run --cores, $%s).",
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
