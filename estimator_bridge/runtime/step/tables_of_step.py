"""Stores the table tensors of a training step with the graph, for hooks that summarize them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import tensorflow.compat.v1 as tf

from estimator_bridge.runtime.input.feature_splitting import CoreInput
from tf2_engine import TPUEmbedding, structure
from tf2_engine.batch import FeatureBatch
from tf2_engine.types import Graph, Op, Tensor

_ATTRIBUTE = "_tables_of_step"


@dataclasses.dataclass(frozen=True)
class TablesOfStep:
    """The tables of a step and, by core, their inputs and the gradients that the step sends.

    The table variables are up to date unless a device holds the tables.
    """

    engine: TPUEmbedding
    inputs: Sequence[CoreInput]
    gradients: Sequence[Mapping[str, Tensor]]
    train_op: Op
    is_current: bool

    def parts(self) -> list[list[FeatureBatch]]:
        order = self.engine.plan.structure
        parts = []
        for part in self.inputs:
            ids, weights = (
                structure.flatten(order, nest, "features") for nest in (part.ids, part.weights)
            )
            parts.append([*map(FeatureBatch, ids, weights)])
        return parts

    def gradients_in_order(self) -> list[list[Tensor]]:
        order = self.engine.plan.structure
        return [structure.flatten(order, part, "gradients") for part in self.gradients]


def keep(tables: TablesOfStep) -> None:
    setattr(tf.get_default_graph(), _ATTRIBUTE, tables)


def of_graph(graph: Graph) -> TablesOfStep | None:
    kept: TablesOfStep | None = getattr(graph, _ATTRIBUTE, None)
    return kept
