"""Recognises how a training step uses an optimizer, and writes its Keras counterpart."""

from __future__ import annotations

import ast

from estimator_bridge.migrate.keras_form import rules
from estimator_bridge.migrate.keras_form.optimizer_counterparts import OF_TRAIN
from estimator_bridge.migrate.keras_form.program_text.source import (
    Source,
    method_of,
)


def is_optimizer(source: Source, node: ast.AST) -> bool:
    return source.called(node) in OF_TRAIN


def kind(source: Source, node: ast.AST) -> str:
    return OF_TRAIN[source.called(node)].new.rpartition(".")[2]


def written(source: Source, call: ast.Call, rate: str = "") -> str:
    row = OF_TRAIN[source.called(call)]
    by_name = rules.known_arguments(source, call, row.names, unused="name use_locking")
    return row.written(source, row.parts(source, by_name, rate))


def is_global_step(source: Source, node: ast.AST) -> bool:
    return source.called(node) in ("train.get_global_step", "train.get_or_create_global_step")


def is_cross_shard(source: Source, statement: ast.stmt) -> bool:
    if isinstance(statement, ast.If) and not statement.orelse:
        return all(is_cross_shard(source, each) for each in statement.body)
    return isinstance(statement, ast.Assign) and wraps_for_tpu(source, statement.value)


def wraps_for_tpu(source: Source, node: ast.AST) -> bool:
    """Whether a node wraps an optimizer in a CrossShardOptimizer that averages over all cores."""
    if not source.called(node).endswith("CrossShardOptimizer") or not isinstance(node, ast.Call):
        return False
    reductions = [each.value for each in node.keywords if each.arg == "reduction"]
    others = [each for each in node.keywords if each.arg not in ("reduction", "name")]
    is_mean = all(source.short(each) == "losses.Reduction.MEAN" for each in reductions)
    return len(node.args) == 1 and not others and is_mean


def is_minimize(source: Source, node: ast.AST) -> bool:
    return method_of(node) == "minimize" and not source.called(node)
