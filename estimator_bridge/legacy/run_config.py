"""Settings of TPUs: `TPUConfig`, and the `RunConfig` that contains it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.legacy import base_run_config, requirements
from estimator_bridge.legacy.base_run_config import ConfigProperty
from estimator_bridge.legacy.tf_config import TaskType, tf_config
from tf2_engine import log
from tf2_engine.arguments import typed
from tf2_engine.types import Object

_log = log.PlainLogger(__name__)


class InputPipelineConfig:
    """Input modes: which hosts and cores call the input_fn, and which part of a batch they get."""

    PER_SHARD_V1: Final = 1
    PER_HOST_V1: Final = 2
    PER_HOST_V2: Final = 3
    BROADCAST: Final = 4
    SLICED: Final = 5


_PER_HOST = {True: InputPipelineConfig.PER_HOST_V1, False: InputPipelineConfig.PER_SHARD_V1}


class IterationsPerLoop(NamedTuple):
    """The length of a training loop on the device: in steps (`unit` is "count") or in seconds."""

    value: int
    unit: str


_SECONDS = {"s": 1, "m": 60, "h": 3600}


def parse_iterations_per_loop(iterations_per_loop: int | str) -> IterationsPerLoop:
    """Parses a number of steps, or a time such as "3600s", "60m" or "1h"."""
    match = re.fullmatch(r"([1-9]\d*)([smh|]?)", str(iterations_per_loop))
    if match is None or match[2] == "|":
        raise errors.InvalidSpec(
            "`TPUConfig`: `iterations_per_loop` must be positive: an int, or a time such as "
            f"'3600s', '60m' or '1h'; got {iterations_per_loop!r}."
        )
    if not match[2]:
        return IterationsPerLoop(int(match[1]), "count")
    return IterationsPerLoop(int(match[1]) * _SECONDS[match[2]], "seconds")


_CHOICES = {
    "num_cores_per_replica": requirements.one_of(
        (None, 1, 2, 4, 8, 16, 32, 64, 128),
        "{name} must be 1, 2, 4, 8, 16, 32, 64, 128; got {value}",
    ),
    "eval_training_input_configuration": requirements.one_of(
        (InputPipelineConfig.PER_HOST_V1, InputPipelineConfig.SLICED),
        "{name} must be PER_HOST_V1 (2) or SLICED (5)",
    ),
}


@requirements.checked
class TPUConfig(NamedTuple):
    """Settings of the TPU. They are emulated, or ignored if results do not depend on them.

    Attributes:
        iterations_per_loop: steps per training loop on the device, or a time such as "60m".
        num_shards: number of cores; None means all.
        num_cores_per_replica: number of cores that share a replica of the model; None means one.
        per_host_input_for_training: an `InputPipelineConfig`; True means PER_HOST_V1, and False
            means PER_SHARD_V1.
        tpu_job_name: the job of the TPU workers; if None, TF_CONFIG decides.
        input_partition_dims: how inputs are partitioned over the cores of a replica.

    Raises:
        InvalidSpec: a setting is out of range or contradicts another setting.
        WrongType: a number is not an int.
    """

    iterations_per_loop: int | str = 2
    num_shards: int | None = None
    num_cores_per_replica: int | None = None
    per_host_input_for_training: bool | int = True
    tpu_job_name: str | None = None
    initial_infeed_sleep_secs: int | None = None
    input_partition_dims: Sequence[Object] | None = None
    eval_training_input_configuration: int = InputPipelineConfig.PER_HOST_V1
    experimental_host_call_every_n_steps: int = 1
    experimental_allow_per_host_v2_parallel_get_next: bool = False
    experimental_feed_hook: type | None = None

    def _checked(self) -> TPUConfig:
        parse_iterations_per_loop(self.iterations_per_loop)
        requirements.check("TPUConfig", "num_shards", self.num_shards, *requirements.POSITIVE_INT)
        secs = self.initial_infeed_sleep_secs or None
        requirements.check(
            "TPUConfig", "initial_infeed_sleep_secs", secs, *requirements.POSITIVE_INT
        )
        if self.input_partition_dims is not None:
            _check_partition(self, self.input_partition_dims)
        requirements.check_settings("TPUConfig", self._asdict(), _CHOICES)
        per_host = self.per_host_input_for_training
        if isinstance(per_host, bool):
            per_host = _PER_HOST[per_host]
        return self._replace(
            per_host_input_for_training=per_host,
            tpu_job_name=self.tpu_job_name or _configured_job_name(),
        )


@typed
class RunConfig(base_run_config.RunConfig):
    """The configuration of an estimator on TPUs.

    Args:
        evaluation_master: the address for evaluation sessions; None means `master`.
        master: the address for training sessions; if None, TF_CONFIG decides.
        cluster: a cluster resolver, instead of `master`.
        **settings: the arguments of the base class.

    Raises:
        InvalidSpec: as in the base class; or `cluster` is given together with `master`, or with a
            `session_config` that has a cluster.
    """

    def __init__(
        self,
        tpu_config: TPUConfig | None = None,
        evaluation_master: str | None = None,
        master: str | None = None,
        cluster: Object = None,
        **settings: Object,
    ) -> None:
        super().__init__(**settings)
        for name, value, attribute, kind in (
            ("tpu_config", tpu_config, "iterations_per_loop", "a TPUConfig"),
            ("cluster", cluster, "cluster_spec", "a cluster resolver"),
        ):
            if value is not None and not hasattr(value, attribute):
                raise errors.WrongSetting(f"`RunConfig`: `{name}` must be {kind}, got {value!r}.")
        if master is not None and cluster is not None:
            raise errors.InvalidSpec(
                f"`RunConfig`: both `master` ({master!r}) and `cluster` ({cluster!r}) are given. "
                "Give only one of them."
            )
        self._tpu_config, self._cluster = tpu_config or TPUConfig(), cluster
        if master is not None:
            self._master = master
        if cluster:
            self._use_cluster(cluster)
        if evaluation_master is not None:
            self._evaluation_master = evaluation_master
        elif not self._evaluation_master and self.task_type != TaskType.EVALUATOR:
            self._evaluation_master = self._master

    def _use_cluster(self, cluster: Object) -> None:
        self._master, self._cluster_spec = cluster.master(), cluster.cluster_spec()
        if self._session_config is None:
            self._session_config = tf.compat.v1.ConfigProto(
                allow_soft_placement=True, isolate_session_state=True
            )
        if self._session_config.HasField("cluster_def"):
            raise errors.InvalidSpec(
                "`RunConfig`: both `cluster` and `session_config.cluster_def` are given. Give only "
                "one of them."
            )
        if self._cluster_spec:
            self._session_config.cluster_def.CopyFrom(self._cluster_spec.as_cluster_def())

    tpu_config = ConfigProperty("The `TPUConfig`.")
    cluster = ConfigProperty("The cluster resolver, or None.")

    def replace(self, **settings: Object) -> RunConfig:
        tpu_config = settings.pop("tpu_config", self._tpu_config)
        changed = super().replace(**settings)
        changed._tpu_config = tpu_config
        return changed


def _check_partition(config: TPUConfig, dims: Sequence[Object]) -> None:
    if len(dims) not in (1, 2):
        raise errors.InvalidSpec(
            f"`TPUConfig`: `input_partition_dims` is {dims!r}. It must be a list with one or two "
            "elements. The first is for features, the second for labels."
        )
    if config.per_host_input_for_training is not InputPipelineConfig.PER_HOST_V2:
        raise errors.InvalidSpec(
            "`TPUConfig`: input_partition_dims is only supported in PER_HOST_V2 mode, but the mode "
            f"is {config.per_host_input_for_training!r}. Set per_host_input_for_training to "
            "InputPipelineConfig.PER_HOST_V2."
        )
    if config.num_cores_per_replica is None:
        raise errors.InvalidSpec(
            "`TPUConfig`: input_partition_dims requires setting num_cores_per_replica, which is "
            "None."
        )


def _configured_job_name() -> str | None:
    name: str | None = (tf_config().get("service") or {}).get("tpu_worker_job_name")
    if name:
        _log.info("The TPU job name in TF_CONFIG is %r.", name)
    return name
