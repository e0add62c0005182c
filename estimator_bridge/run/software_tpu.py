"""Runs TPUEstimators on a TPU in software: stock's own, to compare with, and the bridge's."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

from estimator_bridge import errors
from estimator_bridge.run import install


@contextlib.contextmanager
def stock_on_software_tpu(report: Callable[[str], Any] | None = None) -> Iterator[None]:
    """While it is open, stock's `TPUEstimator(use_tpu=True)` trains and evaluates on the CPU.

    The TPU has one core, on one host; a `TPUClusterResolver` finds this process. A `TPUConfig` that
    asks for another number of shards is made without one, which stock takes for as many as there
    are.

    Args:
        report: is told, once for each number, what was changed; None writes it to stderr.

    Raises:
        MissingStock: TensorFlow has no TPUEstimator of its own.
        InvalidSpec, CannotBuild: there can be no software TPU here; the message says why.
    """
    tell = report or _to_stderr
    estimator = stock_estimator()
    from tf2_engine import soft_tpu

    config = estimator.tpu.TPUConfig
    stock_new = config.__new__
    signature = inspect.signature(stock_new)
    told: set[int] = set()

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(cls, *args, **kwargs)
        shards = given.arguments.get("num_shards")
        if shards is not None:
            given.arguments["num_shards"] = None
            if shards not in told:
                told.add(shards)
                tell(
                    f"estimator-bridge: TPUConfig(num_shards={shards}) runs as num_shards=None: "
                    "stock's TPUEstimator has one core on the software TPU, so that a batch is "
                    "not split, and losses are not divided by the number of cores."
                )
        return stock_new(*given.args, **given.kwargs)

    with soft_tpu.instead_of_tpu(), install.local_resolvers():
        config.__new__ = new
        try:
            yield
        finally:
            config.__new__ = stock_new


@contextlib.contextmanager
def bridge_on_software_tpu() -> Iterator[None]:
    """While it is open, the bridge's TPUEstimators run on a software TPU unless they say otherwise.

    It has as many cores as `TPUConfig.num_shards` says, one by default.

    Raises:
        InvalidSpec, CannotBuild: there can be no software TPU here; the message says why.
    """
    from estimator_bridge.runtime.step import devices
    from tf2_engine import soft_tpu

    soft_tpu.start()
    before = devices.default_engine()
    devices.set_default_engine(devices.SOFTWARE_TPU)
    try:
        yield
    finally:
        devices.set_default_engine(before)


def stock_estimator() -> Any:
    """Returns the namespace of stock's estimators.

    Raises:
        MissingStock: TensorFlow has no TPUEstimator of its own.
    """
    try:
        from tensorflow_estimator import estimator  # noqa: F401 - says whether there is one
    except ImportError as error:
        raise errors.MissingStock(
            "Stock's TPUEstimator is not installed: it is beside TensorFlow 2.15.1 alone "
            "(pip install tensorflow==2.15.1 tensorflow-estimator==2.15.0)."
        ) from error
    import tensorflow as tf

    return tf.compat.v1.estimator


def _to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")
