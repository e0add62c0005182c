"""Serves as a worker or parameter server of the cluster in TF_CONFIG until the chief ends.

Start `serve` instead of the program in tasks that do not need the program or its data.
"""

from __future__ import annotations

import argparse

from estimator_bridge import errors


def execute(options: argparse.Namespace) -> int:
    from estimator_bridge.legacy.base_run_config import RunConfig
    from estimator_bridge.runtime.cluster import task_software
    from estimator_bridge.runtime.cluster.tasks import cluster_of

    cluster = cluster_of(RunConfig())
    if cluster is None or cluster.is_chief:
        raise errors.InvalidInput(
            'TF_CONFIG does not make this process a "ps" or "worker" of a cluster with parameter '
            "servers. Use `serve` only for these tasks; as chief or evaluator, run the program."
        )
    task_software.serve(cluster)
    return 0
