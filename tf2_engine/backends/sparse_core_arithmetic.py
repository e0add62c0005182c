"""Chooses the driver for `arithmetic="sparsecore"`, and checks the settings that it needs."""

from __future__ import annotations

import dataclasses
from typing import Final

import tensorflow as tf

from tf2_engine import errors, log
from tf2_engine.backends.host import HostDriver
from tf2_engine.backends.interface import Driver
from tf2_engine.backends.sparsecore import SparseCoreDriver
from tf2_engine.sparsecore_limits import SparseCoreLimits
from tf2_engine.specs import EngineSpec, TableSpec
from tf2_engine.types import Object

NAME: Final = "sparsecore"


def make_driver(limits: Object = None) -> Driver:
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, tf.distribute.TPUStrategy):
        say = log.warning if SparseCoreLimits.of(limits).allow_id_dropping else log.info
        if limits is not None:
            say("Limits of SparseCores have no effect on a host: no id is dropped or refused.")
        return HostDriver(arithmetic=NAME)
    if not SparseCoreDriver.claims(strategy):
        raise errors.InvalidSpec(
            "arithmetic='sparsecore': the TPU has no SparseCores, but embedding hardware of the "
            "first generation. Leave `arithmetic` out, or use a TPU v5p, v6e or TPU7x."
        )
    return SparseCoreDriver(limits)


def check_limits(arithmetic: str | None, limits: Object) -> None:
    if limits is not None and arithmetic != NAME:
        raise errors.InvalidSpec(
            f"`sparse_core_limits` are given, but the arithmetic is {arithmetic!r}, which does not "
            "limit the number of ids. Give arithmetic='sparsecore', or leave the limits out."
        )


def accumulating(spec: EngineSpec) -> EngineSpec:
    return dataclasses.replace(spec, tables=tuple(map(_accumulating, spec.tables)))


def _accumulating(table: TableSpec) -> TableSpec:
    optimizer = table.optimizer
    if optimizer is None or optimizer.use_gradient_accumulation:
        return table
    log.warning(
        "Table %r: use_gradient_accumulation=False is ignored, as SparseCores ignore it: a row is "
        "updated once in a step, with the sum of its gradients.",
        table.name,
    )
    return dataclasses.replace(
        table, optimizer=dataclasses.replace(optimizer, use_gradient_accumulation=True)
    )
