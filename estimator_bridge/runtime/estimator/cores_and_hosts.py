"""Counts the cores that a TPUEstimator emulates, and chooses the hosts that call its input_fn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from estimator_bridge import errors
from estimator_bridge.defaults import (
    CORES_VARIABLE,
    INPUT_HOSTS_VARIABLE,
    default_cores,
    default_input_hosts,
)
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.legacy.run_config import InputPipelineConfig, TPUConfig
from estimator_bridge.runtime.input.hosts import THIS_PROCESS
from estimator_bridge.runtime.program_types import InputFn
from tf2_engine.types import Object


def num_replicas(config: TPUConfig) -> int:
    cores, per_replica = default_cores(), config.num_cores_per_replica or 1
    if cores is None:
        return config.num_shards or 1
    if cores % per_replica:
        raise errors.InvalidInput(
            f"TPUConfig.num_cores_per_replica={per_replica} does not divide the {cores} core(s) of "
            f"`run --cores` or ${CORES_VARIABLE}. Change one of them."
        )
    replicas = cores // per_replica
    if config.num_shards not in (None, replicas):
        raise errors.InvalidInput(
            f"TPUConfig.num_shards is not set correctly: it is {config.num_shards}, but {cores} "
            f"core(s) are set by `run --cores` or ${CORES_VARIABLE}, enough for {replicas} "
            "replica(s). Set only one of these."
        )
    return replicas


def input_hosts(
    workers: Sequence[str], mode: str, input_mode: int, num_cores: int
) -> tuple[str, ...]:
    """Lists the devices of the hosts that call the input_fn, each for an equal part of the cores.

    As on a TPU pod, evaluations use several hosts only in PER_HOST_V2 mode. Predictions and
    BROADCAST mode use only this process.
    """
    asked = default_input_hosts()
    count = asked or len(workers) or 1
    if workers and count not in (1, len(workers)):
        raise errors.InvalidInput(
            f"`run --input_hosts` or ${INPUT_HOSTS_VARIABLE} sets {count} host(s), but the cluster "
            f"has {len(workers)} workers, each of which reads its own input. Set {len(workers)}; "
            "or set 1 to let the chief read for all."
        )
    if asked and num_cores % asked:
        raise errors.InvalidInput(
            f"`run --input_hosts` or ${INPUT_HOSTS_VARIABLE} sets {count} host(s), which do not "
            f"divide the {num_cores} core(s) of TPUConfig.num_shards evenly. Change one of the two."
        )
    if asked == 1 or not _is_read_by_all(mode, input_mode):
        return (THIS_PROCESS,)
    return tuple(workers) or (THIS_PROCESS,) * count


def _is_read_by_all(mode: str, input_mode: int) -> bool:
    if mode == ModeKeys.TRAIN:
        return input_mode != InputPipelineConfig.BROADCAST
    return mode == ModeKeys.EVAL and input_mode == InputPipelineConfig.PER_HOST_V2


def all_read_the_same(input_fn: InputFn, num_hosts: int) -> str:
    return (
        f"The input_fn {_name(input_fn)} is called for each of {num_hosts} hosts, as on a TPU pod, "
        "but does not ask which host calls it, so all hosts read the same data. To give each host "
        "its own part, shard the data by params['context'].current_input_fn_deployment()[1:3] (the "
        "number of this call, and the number of calls). Or let the chief read for all workers, "
        f"with `estimator-bridge run --input_hosts 1` or {INPUT_HOSTS_VARIABLE}=1."
    )


def chief_reads_unsharded(input_fn: InputFn, num_hosts: int) -> str:
    return (
        f"The input_fn {_name(input_fn)} does not ask which host calls it, so the chief reads for "
        f"all {num_hosts} workers, as on one machine. To let each worker read its own part, shard "
        "the data by params['context'].current_input_fn_deployment()[1:3]. To let all workers read "
        f"the same data, use `estimator-bridge run --input_hosts {num_hosts}` or "
        f"{INPUT_HOSTS_VARIABLE}={num_hosts}."
    )


def chief_reads(input_fn: InputFn, num_hosts: int, names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"The input_fn {_name(input_fn)} calls Python (op {names[0]!r}{more}). Only the chief has "
        f"these functions, so it reads for all {num_hosts} worker(s). With TensorFlow's ops only, "
        "each worker would read for itself."
    )


def _name(function: Callable[..., Object]) -> str:
    return str(getattr(function, "__qualname__", None) or repr(function))
