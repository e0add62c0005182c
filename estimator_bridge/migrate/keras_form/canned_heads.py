"""Heads that canned estimators are given: those of a classifier or a regressor, in other words."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from estimator_bridge.migrate.keras_form.canned_estimators import HEADS
from estimator_bridge.migrate.keras_form.sites import Site, all_arguments, followed
from estimator_bridge.migrate.keras_form.source import Source

_ARGUMENTS: Mapping[str, str] = {
    "BinaryClassHead": "weight_column thresholds label_vocabulary loss_reduction loss_fn name",
    "MultiClassHead": "n_classes weight_column label_vocabulary loss_reduction loss_fn name",
    "RegressionHead": ("label_dimension weight_column loss_reduction loss_fn inverse_link_fn name"),
}


def resolve(source: Source, site: Site) -> None:
    """Has a site with a head be one of the classifier or regressor that has this head.

    Adds a problem if the head is not carried.
    """
    argument = site.arguments.pop("head", None)
    if argument is None or site.canned is None:
        return
    head = followed(source, argument)
    name = source.called(head).rpartition(".")[2] if head is not None else ""
    if head is not None:
        source.done.update(ast.walk(head.func if isinstance(head, ast.Call) else head))
    # TensorFlow 1's estimators take heads of their own, which no program can name.
    if not isinstance(head, ast.Call) or name not in HEADS or site.canned.is_v1:
        source.problem(
            *(argument, "keras-estimator-class", "its head is not carried"),
            f"Use one of {', '.join(HEADS)} with an estimator of TensorFlow 2, made where the "
            "estimator is, or migrate to the bridge form",
        )
        return
    site.arguments |= all_arguments(source, head, _ARGUMENTS[name].split())
    site.canned = site.canned.with_head(name)
