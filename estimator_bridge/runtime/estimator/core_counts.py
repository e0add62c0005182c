"""Computes the cores that a TPUEstimator emulates, and the replicas of a model on them."""

from __future__ import annotations

import os
from typing import Final

from estimator_bridge import errors
from estimator_bridge.legacy.run_config import TPUConfig

VARIABLE: Final = "ESTIMATOR_BRIDGE_CORES"
"""The environment variable with the number of cores where a program sets no `num_shards`."""

_default: int | None = None


def set_default_cores(count: int | None) -> None:
    """Sets the cores of TPUEstimators whose TPUConfig has no `num_shards`.

    None takes the number from the environment, or one core.
    """
    global _default
    _default = count


def default_cores() -> int | None:
    """Returns the number of cores that was asked for; None if none was.

    Raises:
        InvalidInput: the environment variable is no positive number.
    """
    return count_of_environment(VARIABLE, "cores") if _default is None else _default


def count_of_environment(variable: str, things: str) -> int | None:
    """Returns the number in an environment variable; None if it is empty.

    Raises:
        InvalidInput: it is no positive number; `things` says of what.
    """
    text = os.environ.get(variable, "")
    if text and (not text.isdecimal() or int(text) < 1):
        raise errors.InvalidInput(f"${variable}={text!r} must be a positive number of {things}.")
    return int(text) if text else None


def num_replicas(config: TPUConfig) -> int:
    """Returns the replicas of the model: the cores, or with model parallelism fewer.

    Raises:
        InvalidInput: `num_shards` is set and contradicts the number of cores that was asked for;
            or these cannot be divided among replicas.
    """
    cores, per_replica = default_cores(), config.num_cores_per_replica or 1
    if cores is None:
        return config.num_shards or 1
    if cores % per_replica:
        raise errors.InvalidInput(
            f"TPUConfig.num_cores_per_replica={per_replica}, of which the {cores} core(s) of "
            f"`run --cores` or ${VARIABLE} are no multiple."
        )
    replicas = cores // per_replica
    if config.num_shards not in (None, replicas):
        raise errors.InvalidInput(
            f"TPUConfig.num_shards is not set correctly: it is {config.num_shards}, but {cores} "
            f"core(s) were asked for by `run --cores` or ${VARIABLE}, which make {replicas} "
            "replica(s). Leave one of the two out."
        )
    return replicas
