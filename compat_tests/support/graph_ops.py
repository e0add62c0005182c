"""The ops of the graphs that estimators make, beside those of stock's estimators."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from compat_tests import known_differences

MODES = ("train", "evaluate", "predict")


class Ops(tf.compat.v1.train.SessionRunHook):
    """Keeps the names and types of the ops of a graph."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.found = {(op.name, op.type) for op in session.graph.get_operations()}


def ops_with_inputs(graph: Any) -> dict[str, tuple[str, ...]]:
    """Returns the type of each op of a graph, and the names of its inputs, by its name."""
    return {node.name: (node.op, *node.input) for node in graph.as_graph_def().node}


def assert_same_ops(mode: str, ours: Ops, theirs: Ops, case: str = "") -> None:
    """Raises AssertionError if a graph lacks an op of the other one that no difference names."""
    for side, here, there in (("bridge", ours, theirs), ("stock", theirs, ours)):
        alone = sorted(name for name, _ in here.found - there.found)
        known = re.compile("|".join(_known(mode, side, case)))
        unknown = [name for name in alone if not known.fullmatch(name)]
        assert unknown == [], f"{mode}: the {side} alone has {unknown}"


def _known(mode: str, side: str, case: str) -> Iterator[str]:
    for row in known_differences.OPS:
        if (row.mode, row.side) == (mode, side) and row.of in case:
            yield f"(?:{row.names})"
