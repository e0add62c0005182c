"""The strategies of a RunConfig: which ones an estimator runs under, and which it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from estimator_bridge import errors
from estimator_bridge.legacy.estimator_spec import ModeKeys
from tf2_engine import soft_tpu

_IN_ONE_GRAPH = (
    tf.distribute.MirroredStrategy,
    tf.compat.v1.distribute.MirroredStrategy,
    tf.distribute.OneDeviceStrategy,
    tf.compat.v1.distribute.OneDeviceStrategy,
)


def read_strategies(config: Any) -> Mapping[str, Any]:
    """Returns the strategy of each mode, None for most.

    Prediction has none: it is made in the order of the input.

    Raises:
        InvalidInput: a strategy cannot run an estimator here; the message names the setting.
    """
    given = {
        "train_distribute": getattr(config, "train_distribute", None),
        "eval_distribute": getattr(config, "eval_distribute", None),
    }
    more = getattr(config, "experimental_distribute", None)
    if more is not None:
        if getattr(more, "remote_cluster", None):
            raise errors.InvalidInput(
                f"`RunConfig`: `experimental_distribute.remote_cluster`={more.remote_cluster!r}: "
                "one process does all the work here. Leave it out."
            )
        for name in given:
            own = getattr(more, name, None)
            if own is not None and given[name] is not None:
                raise errors.InvalidInput(
                    f"`RunConfig`: both `{name}` and `experimental_distribute.{name}` are given; "
                    "give one of them."
                )
            given[name] = given[name] or own
    for name, strategy in given.items():
        if strategy is not None and not isinstance(
            strategy, (*_IN_ONE_GRAPH, soft_tpu.SoftTPUStrategy)
        ):
            raise errors.InvalidInput(
                f"`RunConfig`: `{name}`={strategy!r} cannot run an estimator; MirroredStrategy, "
                "OneDeviceStrategy and, with use_tpu=True, SoftTPUStrategy can. Leave it out, or "
                "set TPUConfig.num_shards for several cores."
            )
    return {
        ModeKeys.TRAIN: given["train_distribute"],
        ModeKeys.EVAL: given["eval_distribute"],
        ModeKeys.PREDICT: None,
    }


def check_replicates(strategy: Any) -> None:
    """Refuses a strategy that cannot run the replicas of a model without an engine.

    Raises:
        InvalidInput: it is that of a TPU.
    """
    if isinstance(strategy, soft_tpu.SoftTPUStrategy):
        raise errors.InvalidInput(
            f"`RunConfig`: {strategy!r} needs a TPUEstimator with use_tpu=True, as a TPU does."
        )


def core_devices(strategy: Any) -> tuple[str, ...]:
    """Returns on which device the model of each core runs; nothing leaves it to TensorFlow."""
    if isinstance(strategy, (*_IN_ONE_GRAPH,)):
        return tuple(strategy.extended.worker_devices)
    return ()
