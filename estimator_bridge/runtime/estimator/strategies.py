"""Reads the strategies of a RunConfig, and refuses those that cannot run an estimator."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.legacy.base_run_config import RunConfig
from estimator_bridge.legacy.estimator_spec import ModeKeys
from tf2_engine import soft_tpu
from tf2_engine.types import Strategy

_IN_ONE_GRAPH = (
    tf.distribute.MirroredStrategy,
    tf.compat.v1.distribute.MirroredStrategy,
    tf.distribute.OneDeviceStrategy,
    tf.compat.v1.distribute.OneDeviceStrategy,
)


def read_strategies(config: RunConfig) -> Mapping[str, Strategy | None]:
    """Returns the strategy of each mode, None for most.

    Prediction has none: it is made in the order of the input.

    Raises:
        InvalidInput: a strategy cannot run an estimator here; the message names the setting.
    """
    strategies = {
        "train_distribute": getattr(config, "train_distribute", None),
        "eval_distribute": getattr(config, "eval_distribute", None),
    }
    experimental = getattr(config, "experimental_distribute", None)
    if experimental is not None:
        if getattr(experimental, "remote_cluster", None):
            raise errors.InvalidInput(
                "`RunConfig`: `experimental_distribute.remote_cluster`="
                f"{experimental.remote_cluster!r}: one process does all the work here. Leave it "
                "out."
            )
        for name in strategies:
            strategy = getattr(experimental, name, None)
            if strategy is not None and strategies[name] is not None:
                raise errors.InvalidInput(
                    f"`RunConfig`: both `{name}` and `experimental_distribute.{name}` are given; "
                    "give one of them."
                )
            strategies[name] = strategies[name] or strategy
    for name, strategy in strategies.items():
        if strategy is not None and not isinstance(
            strategy, (*_IN_ONE_GRAPH, soft_tpu.SoftTPUStrategy)
        ):
            raise errors.InvalidInput(
                f"`RunConfig`: `{name}`={strategy!r} cannot run an estimator; MirroredStrategy, "
                "OneDeviceStrategy and, with use_tpu=True, SoftTPUStrategy can. Leave it out, or "
                "set TPUConfig.num_shards for several cores."
            )
    return {
        ModeKeys.TRAIN: strategies["train_distribute"],
        ModeKeys.EVAL: strategies["eval_distribute"],
        ModeKeys.PREDICT: None,
    }


def check_replicates(strategy: Strategy) -> None:
    """Raises an error if a strategy cannot run the replicas of a model without an engine.

    Raises:
        InvalidInput: it is that of a software TPU.
    """
    if isinstance(strategy, soft_tpu.SoftTPUStrategy):
        raise errors.InvalidInput(
            f"`RunConfig`: {strategy!r} needs a TPUEstimator with use_tpu=True, as a TPU does."
        )


def core_devices(strategy: Strategy | None) -> tuple[str, ...]:
    """Returns the device of each core's model; none leaves the placement to TensorFlow."""
    return tuple(strategy.extended.worker_devices) if isinstance(strategy, _IN_ONE_GRAPH) else ()
