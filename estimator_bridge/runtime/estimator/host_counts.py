"""Chooses the hosts on which a TPUEstimator calls its input_fn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from estimator_bridge import errors
from estimator_bridge.legacy.estimator_spec import ModeKeys
from estimator_bridge.legacy.run_config import InputPipelineConfig
from estimator_bridge.runtime.estimator.core_counts import AskedFor
from estimator_bridge.runtime.input.hosts import THIS_PROCESS

VARIABLE: Final = "ESTIMATOR_BRIDGE_INPUT_HOSTS"
"""Environment variable: the number of hosts that call an input_fn."""

HOSTS: Final = AskedFor(VARIABLE, "hosts")
"""The number of hosts that call an input_fn.

Without it, the input_fn decides: if it asks for its host, every worker of the cluster calls it,
otherwise only the chief does. Without workers there is one host.
"""


def input_hosts(
    workers: Sequence[str], mode: str, input_mode: int, num_cores: int
) -> tuple[str, ...]:
    """Lists the devices of the hosts that call the input_fn, each for an equal part of the cores.

    As on a TPU pod, evaluations have several hosts only in PER_HOST_V2 mode. Predictions, which
    keep the order of the input, have one host, and so does BROADCAST mode. A single host is always
    this process.

    Args:
        workers: the devices of a cluster's workers. Without any, this process emulates the hosts.
        input_mode: a member of InputPipelineConfig.

    Raises:
        InvalidInput: the cluster does not have as many hosts as asked for, or their number does not
            divide the number of cores.
    """
    asked = HOSTS.count()
    count = asked or len(workers) or 1
    if workers and count not in (1, len(workers)):
        raise errors.InvalidInput(
            f"{count} host(s) were asked for by `run --input_hosts` or ${VARIABLE}, but the "
            f"cluster has {len(workers)} workers, each of which reads its input. Give "
            f"{len(workers)}; or 1, and the chief reads for all."
        )
    if asked and num_cores % asked:
        raise errors.InvalidInput(
            f"{count} host(s) were asked for by `run --input_hosts` or ${VARIABLE}, which do not "
            f"divide the {num_cores} core(s), TPUConfig.num_shards. Change one of the two."
        )
    if asked == 1 or not _is_read_by_all(mode, input_mode):
        return (THIS_PROCESS,)
    return tuple(workers) or (THIS_PROCESS,) * count


def _is_read_by_all(mode: str, input_mode: int) -> bool:
    if mode == ModeKeys.TRAIN:
        return input_mode != InputPipelineConfig.BROADCAST
    return mode == ModeKeys.EVAL and input_mode == InputPipelineConfig.PER_HOST_V2
