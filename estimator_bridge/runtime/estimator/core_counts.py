"""Counts the cores that a TPUEstimator emulates, and the model replicas on them."""

from __future__ import annotations

import os
from typing import Final

from estimator_bridge import errors
from estimator_bridge.legacy.run_config import TPUConfig

VARIABLE: Final = "ESTIMATOR_BRIDGE_CORES"
"""Environment variable: the number of cores for programs that set no `num_shards`."""


class AskedFor:
    """A count that comes from the command `run` (as `of_run`) or from an environment variable."""

    of_run: int | None = None

    def __init__(self, variable: str, things: str) -> None:
        self._variable, self._things = variable, things

    def count(self) -> int | None:
        """Reads the count; None if it is not set.

        Raises:
            InvalidInput: the environment variable is not a positive number.
        """
        text = os.environ.get(self._variable, "")
        if self.of_run is not None or not text:
            return self.of_run
        if not text.isdecimal() or int(text) < 1:
            raise errors.InvalidInput(
                f"${self._variable}={text!r} must be a positive number of {self._things}."
            )
        return int(text)


CORES: Final = AskedFor(VARIABLE, "cores")
"""The cores of TPUEstimators whose TPUConfig sets no `num_shards`."""


def default_cores() -> int | None:
    return CORES.count()


def num_replicas(config: TPUConfig) -> int:
    """Counts the replicas of the model: one per core, or fewer with model parallelism.

    Raises:
        InvalidInput: `num_shards` contradicts the number of cores that `run` or the environment
            asks for, or the cores cannot be divided among replicas.
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
