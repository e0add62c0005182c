"""Runs TPUEstimators, stock's and the bridge's, on a software TPU."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator

from estimator_bridge import errors
from estimator_bridge.defaults import DEFAULTS
from estimator_bridge.run import install
from tf2_engine import log
from tf2_engine.types import Object


@contextlib.contextmanager
def stock_on_software_tpu() -> Iterator[None]:
    """Makes stock's `TPUEstimator(use_tpu=True)` run on a software TPU with one core.

    A `num_shards` of `TPUConfig` is replaced by None, with a warning.

    Raises:
        MissingStock: TensorFlow has no TPUEstimator of its own.
        InvalidSpec, CannotBuild: the software TPU cannot run on this machine.
    """
    estimator = stock_estimator()
    from tf2_engine import soft_tpu

    config = estimator.tpu.TPUConfig
    stock_new = config.__new__
    signature = inspect.signature(stock_new)
    reported: set[int] = set()

    def new(cls: type, *args: Object, **kwargs: Object) -> Object:
        bound = signature.bind(cls, *args, **kwargs)
        shards = bound.arguments.get("num_shards")
        if shards is not None:
            bound.arguments["num_shards"] = None
            if shards not in reported:
                reported.add(shards)
                log.warning(
                    f"TPUConfig(num_shards={shards}) is treated as num_shards=None: stock's "
                    "TPUEstimator has only one core on the software TPU, so batches are not split, "
                    "and losses are not divided by the number of cores."
                )
        return stock_new(*bound.args, **bound.kwargs)

    with soft_tpu.instead_of_tpu(), install.local_resolvers():
        config.__new__ = new
        try:
            yield
        finally:
            config.__new__ = stock_new


@contextlib.contextmanager
def bridge_on_software_tpu() -> Iterator[None]:
    """Makes the software TPU the default engine of the bridge's TPUEstimators.

    Raises InvalidSpec or CannotBuild if the software TPU cannot run on this machine.
    """
    from estimator_bridge.runtime.step import devices
    from tf2_engine import soft_tpu

    soft_tpu.start()
    before, DEFAULTS.engine = DEFAULTS.engine, devices.SOFTWARE_TPU
    try:
        yield
    finally:
        DEFAULTS.engine = before


def stock_estimator() -> Object:
    try:
        from tensorflow_estimator import estimator  # noqa: F401 - says whether there is one
    except ImportError as error:
        raise errors.MissingStock(
            "Stock's TPUEstimator is not installed. It needs TensorFlow 2.15.1 "
            "(pip install tensorflow==2.15.1 tensorflow-estimator==2.15.0)."
        ) from error
    import tensorflow as tf

    return tf.compat.v1.estimator
