"""The Keras optimizers that compute the same numbers, and how a training step uses them."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from estimator_bridge.migrate.keras_form import rules
from estimator_bridge.migrate.keras_form.optimizer_counterparts import OF_TRAIN
from estimator_bridge.migrate.keras_form.program_text.modes import Item, closure, node_of
from estimator_bridge.migrate.keras_form.program_text.source import (
    Source,
    arguments,
    method_of,
    names_in,
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
    """Whether a node wraps an optimizer so that it averages over all cores."""
    if not source.called(node).endswith("CrossShardOptimizer") or not isinstance(node, ast.Call):
        return False
    reductions = [each.value for each in node.keywords if each.arg == "reduction"]
    others = [each for each in node.keywords if each.arg not in ("reduction", "name")]
    is_mean = all(source.short(each) == "losses.Reduction.MEAN" for each in reductions)
    return len(node.args) == 1 and not others and is_mean


UNUSED = "name gate_gradients aggregation_method colocate_gradients_with_ops"
"""Arguments that affect how and where gradients are computed, but not their values."""


def is_minimize(source: Source, node: ast.AST) -> bool:
    return method_of(node) == "minimize" and not source.called(node)


def is_of_gradients(node: ast.AST) -> bool:
    return method_of(node) in ("apply_gradients", "compute_gradients")


def is_of_optimizer(source: Source, node: ast.AST) -> bool:
    return is_optimizer(source, node) or is_minimize(source, node) or is_of_gradients(node)


def trains(source: Source, item: Item) -> bool:
    nodes = ast.walk(node_of(item))
    return any(is_of_optimizer(source, each) or wraps_for_tpu(source, each) for each in nodes)


def loss_of(source: Source, call: ast.AST) -> ast.expr | None:
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    if source.called(call) == "gradients":
        return arguments(call, ["ys"])[0].get("ys")
    if not is_minimize(source, call) and call.func.attr != "compute_gradients":
        return None
    return arguments(call, ["loss"])[0].get("loss")


def computing_losses(source: Source, items: Sequence[Item], calls: Sequence[ast.AST]) -> list[Item]:
    """Returns the items that compute the losses, which must run under the gradient tape."""
    needed = set().union(
        *(names_in(loss) for call in calls if (loss := loss_of(source, call)) is not None)
    )
    first = min(
        (number for number, item in enumerate(items) if _has(item, calls)), default=len(items)
    )
    return closure(items[:first], needed)


def _has(item: Item, calls: Sequence[ast.AST]) -> bool:
    return any(each in calls for each in ast.walk(node_of(item)))


def write_gradients(source: Source, call: ast.Call, alone: bool) -> None:
    """Rewrites `compute_gradients` and `apply_gradients` of an optimizer as methods of the model.

    `alone` tells whether the program has a single optimizer.
    """
    assert isinstance(call.func, ast.Attribute)
    optimizer = call.func.value
    if call.func.attr == "compute_gradients":
        by_name = rules.known_arguments(source, call, "loss var_list", "loss", UNUSED)
        parts = [by_name[key] for key in ("loss", "var_list") if key in by_name]
        unzipped = _unzipped(source, call)

        def write() -> str:
            code = [source.code(each) for each in parts]
            pair = f"self.gradients({', '.join([code[0], 'tape', *code[1:]])})"
            return pair if unzipped is not None else f"list(zip(*{pair}))"

        if unzipped is not None:
            source.replace(unzipped, write)
            return
    else:
        by_name = rules.known_arguments(
            source, call, "grads_and_vars global_step", "grads_and_vars", UNUSED
        )

        def write() -> str:
            code = [source.code(by_name["grads_and_vars"])]
            code += [] if alone else [source.code(optimizer)]
            return f"self.apply_gradients({', '.join(code)})"

    source.replace(call, write)


def _unzipped(source: Source, call: ast.Call) -> ast.AST | None:
    starred = source.parent(call)
    outer = source.parent(starred) if isinstance(starred, ast.Starred) else None
    if isinstance(outer, ast.Call) and ast.unparse(outer.func) == "zip" and len(outer.args) == 1:
        return outer
    return None


def write_minimize(source: Source, call: ast.Call, alone: bool) -> None:
    """Rewrites `optimizer.minimize(loss)` as `self.minimize(loss, tape)`.

    `alone` tells whether the program has a single optimizer.
    """
    by_name = rules.known_arguments(source, call, "loss global_step var_list", "loss", UNUSED)
    optimizer = call.func.value  # type: ignore[attr-defined]

    def write() -> str:
        parts = [source.code(by_name["loss"]), "tape"]
        if "var_list" in by_name:
            parts.append(source.code(by_name["var_list"]))
        if not alone:
            parts += ["None"] * (len(parts) == 2) + [source.code(optimizer)]
        return f"self.minimize({', '.join(parts)})"

    source.replace(call, write)
