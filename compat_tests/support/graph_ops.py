"""Compares the ops of the graphs that our estimators create with those of stock's estimators."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from compat_tests import known_differences

MODES = ("train", "evaluate", "predict")


class Ops(tf.compat.v1.train.SessionRunHook):
    """Collects the names and types of a graph's ops."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.found = {(op.name, op.type) for op in session.graph.get_operations()}


def ops_with_inputs(graph: Any) -> dict[str, tuple[str, ...]]:
    """Maps the name of each op in a graph to the op's type, followed by the names of its inputs."""
    return {node.name: (node.op, *node.input) for node in graph.as_graph_def().node}


def assert_same_ops(mode: str, ours: Ops, theirs: Ops, case: str = "") -> None:
    """Checks that only ops in `known_differences` are in one graph and not in the other."""
    for side, here, there in (("bridge", ours, theirs), ("stock", theirs, ours)):
        alone = sorted(name for name, _ in here.found - there.found)
        known = re.compile("|".join(_known(mode, side, case)))
        unknown = [name for name in alone if not known.fullmatch(name)]
        assert unknown == [], f"{mode}: the {side} alone has {unknown}"


def _known(mode: str, side: str, case: str) -> Iterator[str]:
    for row in known_differences.OPS:
        if (row.mode, row.side) == (mode, side) and row.of in case:
            yield f"(?:{row.names})"
