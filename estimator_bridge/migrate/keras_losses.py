"""Refuses programs of the Keras form that would train by several losses: tables take one."""

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
    """Raises Refused if a step of the new program differentiates several losses.

    Args:
        source: of the new program.
        name: of the old one.
    """
    steps = [
        each
        for each in ast.walk(ast.parse(source))
        if isinstance(each, ast.FunctionDef) and each.name == _STEP
    ]
    for step in steps:
        losses = [loss for loss in map(_loss_of, ast.walk(step)) if loss is not None]
        names = {ast.unparse(each) for each in losses}
        # Two expressions are two tensors, also where they read the same.
        computed = [each for each in losses if not isinstance(each, ast.Name)]
        if len(names) > 1 or (computed and len(losses) > 1):
            blocker = Blocker(0, "keras-no-training", "", f"{name}: {_WHY}", _WAY_OUT, name)
            raise Refused(name, [blocker], "the Keras form")


def _loss_of(node: ast.AST) -> ast.expr | None:
    """Returns the loss that a call of the model differentiates; None of other nodes."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    takes = node.func.attr in _TAKES_A_LOSS and ast.unparse(node.func.value) == "self"
    return node.args[0] if takes and node.args else None
