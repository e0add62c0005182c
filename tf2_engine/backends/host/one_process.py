"""Refuses strategies that span several processes: this backend's tables are in one process."""

from __future__ import annotations

import tensorflow as tf

from tf2_engine import errors
from tf2_engine.types import Strategy

_V1 = tf.compat.v1.distribute.experimental

_COPIES = (
    "every worker has copies of all variables and sees its own replica only, but tables exist "
    "once, and each row is updated once a step for all replicas"
)
_ON_COORDINATOR = (
    "the tables of this engine are variables of this process, the coordinator: no parameter server "
    "holds any of them, and every row that a worker looks up would come from here"
)
_GRAPH_PER_WORKER = (
    "every worker has a graph and a session of its own, but one process updates the tables for all "
    "replicas"
)

_CLUSTERS = (
    "For several machines use a cluster with a chief, workers and parameter servers (TF_CONFIG "
    'with "chief", "worker" and "ps"): there tf.distribute.ParameterServerStrategy with a '
    "ClusterCoordinator trains this engine, and TPUEstimator(use_tpu=True) of estimator_bridge "
    "trains without a strategy. On one machine use MirroredStrategy, OneDeviceStrategy or "
    "`num_cores`, or a TPUStrategy."
)
_IN_SCOPE = (
    "Make the engine inside `strategy.scope()`, and leave `driver` out: the parameter servers hold "
    "the tables then."
)

# Name in messages, class, reason, way out.
_REFUSED: tuple[tuple[str, type[Strategy], str, str], ...] = (
    (
        "MultiWorkerMirroredStrategy",
        tf.distribute.MultiWorkerMirroredStrategy,
        _COPIES,
        _CLUSTERS,
    ),
    ("MultiWorkerMirroredStrategy", _V1.MultiWorkerMirroredStrategy, _COPIES, _CLUSTERS),
    (
        "ParameterServerStrategy",
        tf.distribute.ParameterServerStrategy,
        _ON_COORDINATOR,
        _IN_SCOPE,
    ),
    (
        "ParameterServerStrategy of version 1",
        _V1.ParameterServerStrategy,
        _GRAPH_PER_WORKER,
        _CLUSTERS,
    ),
)


def check_one_process(strategy: Strategy, call: str) -> None:
    """Refuses a strategy that spans processes, even with one worker; `call` begins the message."""
    for name, kind, reason, way_out in _REFUSED:
        if isinstance(strategy, kind):
            raise errors.InvalidSpec(f"{call} is not possible under {name}: {reason}. {way_out}")
