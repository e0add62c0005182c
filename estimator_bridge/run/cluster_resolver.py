"""A stand-in for `TPUClusterResolver` where there is no TPU."""

from __future__ import annotations

import tensorflow as tf

from tf2_engine import log
from tf2_engine.types import Message, Object


class LocalResolver(tf.distribute.cluster_resolver.ClusterResolver):
    """A cluster resolver for this process only, with the arguments of `TPUClusterResolver`.

    It contacts no network. The embedding engine runs on the host of this process.
    """

    def __init__(
        self,
        tpu: str | None = None,
        zone: str | None = None,
        project: str | None = None,
        job_name: str = "worker",
        **settings: Object,
    ) -> None:
        self.task_type = job_name
        self.task_id = 0
        log.fact(
            "TPUClusterResolver(tpu=%r, zone=%r, project=%r): this process has no TPU, and does "
            "not look for one elsewhere; the host engine takes its place.",
            *(tpu, zone, project),
        )

    @classmethod
    def connect(
        cls, tpu: str | None = None, zone: str | None = None, project: str | None = None
    ) -> Object:
        return cls(tpu, zone, project)

    def get_master(self) -> str:
        return ""

    def get_job_name(self) -> str:
        return self.task_type

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        return self.get_master()

    def cluster_spec(self) -> tf.train.ClusterSpec:
        return tf.train.ClusterSpec({})

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Message | None = None,
    ) -> dict[str, int]:
        return {"TPU": 0}

    def __repr__(self) -> str:
        return "<TPUClusterResolver without a TPU, this process>"


def in_place_of(stock: type) -> type:
    def make(cls: type, *args: Object, **settings: Object) -> Object:
        if tf.config.list_physical_devices("TPU"):
            return stock(*args, **settings)
        return object.__new__(cls)

    return type("TPUClusterResolver", (LocalResolver,), {"__new__": make})


TPUClusterResolver = in_place_of(tf.distribute.cluster_resolver.TPUClusterResolver)
"""For programs that import the bridge themselves."""
