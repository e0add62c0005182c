"""Finds the defaults that a call of a canned estimator relies on, which differ between the APIs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from estimator_bridge.run.stock_names import CANNED
from estimator_bridge.settings.legacy_spec import Note, Place, SourceText

_KERAS_OPTIMIZER = re.compile(r"\bkeras\.optimizers\.(?!legacy\b)(\w+)\(")


def canned_notes(call: ast.Call, name: str, where: Place) -> Iterator[Note]:
    if name not in CANNED or name.startswith("Baseline"):
        return
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if None in keywords:  # `**options` may hold anything.
        return
    # An Estimator gets its loss with its head; other classes choose one.
    if "loss_reduction" not in keywords and not name.endswith("Estimator"):
        yield Note("canned_loss", where, SourceText(f"{name} without loss_reduction"))
    optimizer = keywords.get("optimizer")
    is_named = optimizer is None or isinstance(optimizer, ast.Constant)
    if name.startswith("DNN") and "LinearCombined" not in name and is_named:
        shown = "without optimizer" if optimizer is None else f"optimizer={ast.unparse(optimizer)}"
        yield Note("canned_rate", where, SourceText(f"{name} {shown}"))
    for argument, value in keywords.items():
        keras_optimizer = _KERAS_OPTIMIZER.search(ast.unparse(value))
        if keras_optimizer and str(argument).endswith("optimizer"):
            yield Note(
                "canned_optimizer", where, SourceText(f"{argument}={keras_optimizer[0]}...)")
            )
