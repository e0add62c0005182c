"""Moves a model_fn's optimizer and learning rate to `compile`, in the model's `__init__`."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping, Sequence

from estimator_bridge.migrate.keras_form import rules
from estimator_bridge.migrate.keras_form.model_class import optimizer_code
from estimator_bridge.migrate.keras_form.model_class.class_body import Body, ClassText
from estimator_bridge.migrate.keras_form.optimizer_counterparts import OF_TRAIN
from estimator_bridge.migrate.keras_form.program_text.modes import closure
from estimator_bridge.migrate.keras_form.program_text.source import (
    NotSimple,
    Source,
    Text,
    arguments,
    bound_in,
    names_in,
    nodes_in,
)


def compiled(
    text: ClassText,
    items: Sequence[ast.stmt],
    spec: Mapping[str, ast.expr],
    tensors: Collection[str],
) -> Text:
    """Returns the line that compiles the model; moves the optimizer's settings to `__init__`.

    Raises NotSimple unless training only minimizes the loss with one optimizer.
    """
    source = text.source
    optimizer = _optimizer(source, items, spec)
    inputs = [*optimizer.args, *(each.value for each in optimizer.keywords)]
    settings = closure(items, set().union(*map(names_in, inputs)))
    settings = [each for each in settings if not _is_step(source, each)]
    for item in items:
        if item not in settings and not _is_of_training(source, item, optimizer):
            raise NotSimple(item, "its training does more than minimize the loss")
    _check_rate(source, [*settings, *inputs], tensors)
    body = Body(text, ())
    for each in [*settings, *inputs]:
        rules.write_schedules(source, each)
        body.contextualize(each, in_init=True)
    for item in settings:
        text.init.append(lambda item=item: source.block(item, 4))  # type: ignore[misc]
    source.done.update((optimizer, optimizer.func))
    return lambda: f"    self.compile(optimizer={optimizer_code.written(source, optimizer)})\n"


def _optimizer(source: Source, items: Sequence[ast.stmt], spec: Mapping[str, ast.expr]) -> ast.Call:
    nodes = [*items, spec.get("train_op", ast.Constant(None))]
    calls = [each for node in nodes for each in nodes_in(node, ast.Call)]
    optimizers = [each for each in calls if source.called(each) in OF_TRAIN]
    minimized = [each for each in calls if optimizer_code.is_minimize(source, each)]
    made = [each for each in nodes_in(source.tree, ast.Call) if source.called(each) in OF_TRAIN]
    if not len(optimizers) == len(minimized) == len(made) == 1:
        raise NotSimple(None, "it must have exactly one optimizer, and call `minimize` once")
    by_name, others = arguments(minimized[0], ["loss", "global_step"])
    losses = [ast.unparse(each) for each in (by_name.get("loss"), spec.get("loss")) if each]
    is_train_op = source.value_of(spec.get("train_op")) is minimized[0]
    if others or losses != ["loss", "loss"] or not is_train_op:
        raise NotSimple(
            minimized[0], "its train_op must be `minimize(loss)`, with the `loss` that its spec has"
        )
    return optimizers[0]


def _is_of_training(source: Source, item: ast.stmt, optimizer: ast.Call) -> bool:
    if _is_step(source, item) or optimizer_code.is_cross_shard(source, item):
        return True
    if not isinstance(item, ast.Assign):
        return False
    value = item.value
    wrapped = value.args[0] if optimizer_code.wraps_for_tpu(source, value) else value  # type: ignore[attr-defined]
    return wrapped is optimizer or optimizer_code.is_minimize(source, value)


def _is_step(source: Source, item: ast.AST) -> bool:
    return isinstance(item, ast.Assign) and optimizer_code.is_global_step(source, item.value)


def _is_argument(source: Source, node: ast.AST) -> bool:
    up = source.parent(node)
    up = source.parent(up) if isinstance(up, ast.keyword) else up
    return up is not None and optimizer_code.is_optimizer(source, up)


def _check_rate(source: Source, nodes: Sequence[ast.AST], tensors: Collection[str]) -> None:
    schedules = [
        each
        for node in nodes
        for each in nodes_in(node, ast.Call)
        if source.called(each) in rules.SCHEDULES
    ]
    for each in schedules:
        up = source.parent(each)
        names = bound_in(up) if isinstance(up, ast.Assign) else []
        uses: list[ast.expr] = [each] * (not names)
        uses += [use for name in names for use in source.uses(name, source.function_of(each))]
        if len(schedules) > 1 or not all(_is_argument(source, use) for use in uses):
            raise NotSimple(each, "a schedule is not passed to the optimizer as its learning rate")
    steps = [arguments(each, ["", "global_step"])[0].get("global_step") for each in schedules]
    of_schedules = {node for step in steps if step is not None for node in ast.walk(step)}
    for node in (each for top in nodes for each in ast.walk(top) if each not in of_schedules):
        name = node.id if isinstance(node, ast.Name) else ""
        value = source.value_of(node) if isinstance(node, ast.Name) else node
        is_step = optimizer_code.is_global_step(source, value) if value is not None else False
        if is_step or name in tensors or source.function(name) is not None:
            raise NotSimple(node, "the learning rate depends on a batch, or on the step")
