"""Refuses Keras-form programs that would train with several losses; tables support only one."""

from __future__ import annotations

import ast

from estimator_bridge.migrate.blockers import Blocker, Refused

_STEP = "train_step"
_TAKES_A_LOSS = ("minimize", "gradients")

_WHY = (
    "the model_fn trains by several losses, and in a step of a Keras model the tables are updated "
    "by one"
)
_WAY_OUT = "Train by their sum, or migrate to the tf2 form"


def check(source: str, name: str) -> None:
    """Raises Refused if one step of the new program differentiates several losses.

    Args:
        source: the new program.
        name: the old program's name.
    """
    steps = [
        each
        for each in ast.walk(ast.parse(source))
        if isinstance(each, ast.FunctionDef) and each.name == _STEP
    ]
    for step in steps:
        losses = [loss for loss in map(_loss_of, ast.walk(step)) if loss is not None]
        names = {ast.unparse(each) for each in losses}
        # Two expressions are two tensors, even if they read the same.
        computed = [each for each in losses if not isinstance(each, ast.Name)]
        if len(names) > 1 or (computed and len(losses) > 1):
            blocker = Blocker(0, "keras-no-training", "", f"{name}: {_WHY}", _WAY_OUT, name)
            raise Refused(name, [blocker], "the Keras form")


def _loss_of(node: ast.AST) -> ast.expr | None:
    """Finds the loss in a call of the model that differentiates one; None for other nodes."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    takes = node.func.attr in _TAKES_A_LOSS and ast.unparse(node.func.value) == "self"
    return node.args[0] if takes and node.args else None
