"""From an input_fn to tensors, in stock's input modes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from estimator_bridge import errors
from estimator_bridge.legacy.run_config import InputPipelineConfig
from estimator_bridge.runtime.input.batch_axis import split_along
from estimator_bridge.runtime.input.feature_splitting import split_batch
from estimator_bridge.translation.legacy_spec import LegacySpec

Batch = tuple[Any, Any]
"""features and labels; labels are None when there are none."""


@dataclasses.dataclass(frozen=True)
class Cores:
    """How a global batch is spread over the cores of one host.

    Attributes:
        count: emulated cores.
        input_mode: a member of InputPipelineConfig.
        batch_axis: along which axis each tensor of a PER_HOST_V1 batch is split; None is the first.
        devices: where the model of each core runs; empty leaves it to TensorFlow.
    """

    count: int
    input_mode: int
    batch_axis: tuple[int, ...] | None = None
    devices: tuple[str, ...] = ()

    def input_batch_size(self, global_batch_size: int) -> int:
        """Returns the `params["batch_size"]` of the input_fn."""
        return global_batch_size // self.count if self._per_core else global_batch_size

    def model_batch_size(self, global_batch_size: int) -> int:
        """Returns the `params["batch_size"]` of the model_fn."""
        broadcast = self.input_mode == InputPipelineConfig.BROADCAST
        return global_batch_size if broadcast else global_batch_size // self.count

    def check_for_predictions(self) -> None:
        """Refuses a `batch_axis`: batches are filled up along their first axis.

        Raises:
            WrongType: there is one, as in stock.
        """
        if self.batch_axis is not None and self.input_mode == InputPipelineConfig.PER_HOST_V1:
            raise errors.WrongType(
                f"`batch_axis`={self.batch_axis} is not possible in predictions; leave it out, or "
                "use InputPipelineConfig.PER_HOST_V2, which has no use for it."
            )

    @property
    def _per_core(self) -> bool:
        return self.input_mode in (
            InputPipelineConfig.PER_HOST_V2,
            InputPipelineConfig.PER_SHARD_V1,
        )


class IteratorHook(tf.train.SessionRunHook):
    """Starts a dataset's iterator in every session that is created."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    def begin(self) -> None:
        """Takes the op while the graph may still change."""
        self._initializer = self._iterator.initializer

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Runs it."""
        session.run(self._initializer)


def read_batch(input_fn: Callable[[], Any]) -> tuple[Batch, list[Any]]:
    """Returns one batch of an input_fn and the hooks that its input needs."""
    (batches, hooks) = _read(input_fn, 1)
    return batches[0], hooks


def read_per_replica(input_fn: Callable[[], Any], count: int) -> tuple[list[Batch], list[Any]]:
    """Returns a batch for each replica of a strategy, and the hooks that the input needs.

    Raises:
        InvalidInput: there are several replicas, and the input_fn gives no dataset.
    """
    return _read(input_fn, count, f"Under a strategy of {count} replicas")


def read_per_core(
    input_fn: Callable[[], Any], cores: Cores, legacy: LegacySpec | None = None
) -> tuple[list[Batch], list[Any]]:
    """Returns each core's batch and the hooks that the input needs.

    PER_HOST_V1 splits one batch, PER_HOST_V2 and PER_SHARD_V1 give every core a batch of its own
    (from one call of the input_fn or one call per core), BROADCAST gives every core the same.

    Args:
        legacy: says which features are ids, for `batch_axis`; None is none.

    Raises:
        InvalidInput: the input mode is not supported here, or `batch_axis` does not fit.
    """
    mode = cores.input_mode
    if mode == InputPipelineConfig.PER_HOST_V2:
        return _read(
            input_fn, cores.count, f"For {cores.count} cores in the PER_HOST_V2 input mode"
        )
    if mode == InputPipelineConfig.PER_SHARD_V1:
        parts = [_read(input_fn, 1) for _ in range(cores.count)]
        return [part[0][0] for part in parts], [hook for part in parts for hook in part[1]]
    if mode not in (InputPipelineConfig.PER_HOST_V1, InputPipelineConfig.BROADCAST):
        raise errors.InvalidInput(
            f"TPUConfig.per_host_input_for_training={mode} is not supported with use_tpu=True; use "
            "InputPipelineConfig.PER_HOST_V1 or PER_HOST_V2."
        )
    (batch,), hooks = _read(input_fn, 1)
    if mode == InputPipelineConfig.BROADCAST:
        return [batch] * cores.count, hooks
    if cores.batch_axis is not None:
        return split_along(batch, cores.batch_axis, cores.count, legacy), hooks
    return list(zip(*(split_batch(part, cores.count) for part in batch), strict=True)), hooks


def _read(
    input_fn: Callable[[], Any], count: int, where: str = ""
) -> tuple[list[Batch], list[Any]]:
    """Calls an input_fn once and takes `count` batches from what it gives."""
    with tf.device("/device:CPU:0"):
        given = input_fn()
        if not isinstance(given, (tf.data.Dataset, tf.compat.v2.data.Dataset)):
            if count > 1:
                raise errors.InvalidInput(
                    f"{where} the input_fn must return a tf.data.Dataset, got "
                    f"{type(given).__name__}."
                )
            return [_features_and_labels(given)], []
        iterator = tf.data.make_initializable_iterator(given)
        batches: list[Batch] = []
        before: list[Any] = []
        for _ in range(count):
            # One after the other: ops of one step run in any order, and core 0 comes first.
            with tf.control_dependencies(before):
                batch = iterator.get_next()
            before = tf.nest.flatten(batch, expand_composites=True)
            batches.append(_features_and_labels(batch))
    return batches, [IteratorHook(iterator)]


def _features_and_labels(given: Any) -> Batch:
    if isinstance(given, (list, tuple)):
        if len(given) != 2:
            raise errors.InvalidInput(
                "input_fn should return features, or a pair (features, labels); got "
                f"{len(given)} elements."
            )
        return given[0], given[1]
    return given, None
