"""Diagnoses the model around the tables, if activations and the loss agree."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from estimator_bridge.recording.files import GRADIENTS, VARIABLES
from estimator_bridge.verification.evidence import Evidence, close
from estimator_bridge.verification.findings import Cause, some
from tf2_engine.types import Array

_FEW = 5


def model_causes(evidence: Evidence) -> Iterator[Cause]:
    gradients = _diverging(evidence, GRADIENTS)
    if gradients:
        yield from _of_gradients(evidence, gradients)
        return
    of_tables = {
        name
        for table in evidence.settings[0]["tables"]
        for name in (table["variable"], *table["slots"])
    }
    variables = [name for name in _diverging(evidence, VARIABLES) if name not in of_tables]
    gradients_a = evidence.values(GRADIENTS)[0]
    owners = tuple(f"{name}/" for name in gradients_a)
    trained = [name for name in variables if f"{name}/".startswith(owners)]
    others = [name for name in variables if name not in trained]
    if trained:
        slots = [name for name in trained if name not in gradients_a]
        what = "another learning rate, epsilon or decay, because no slot differs."
        if slots:
            what = f"another setting that its slots show: {_named(slots)} differ."
        yield Cause(
            "model optimizer",
            f"All gradients agree, but variables differ after the update: {_named(trained)}. On "
            f"one side the model's own optimizer has {what}",
        )
    elif others:
        yield Cause(
            "model variable",
            f"All gradients agree, but variables differ that have no gradient: {_named(others)}"
            f"{_moves(evidence, others[0])}. The program itself updates them, as it does the "
            "moving averages of a batch norm, or a counter.",
        )


def _of_gradients(evidence: Evidence, names: list[str]) -> Iterator[Cause]:
    kept = _kept_gradients(evidence, names)
    if kept is not None:
        yield kept
        return
    ours, theirs = evidence.values(GRADIENTS)
    for side, wrong, right in (("B", theirs, ours), ("A", ours, theirs)):
        cores = evidence.settings[side == "B"]["cores"]
        activations = [name for name in names if name in evidence.ids]
        zero = {name: _zero_cores(wrong[name], right[name], cores) for name in activations}
        if any(0 < len(of_name) < cores for of_name in zero.values()):
            named = [name for name, of_name in zero.items() if of_name]
            text = f"Side {side} has gradients of {_named(named)} that are zero on core "
            text += f"{zero[named[0]][0]}, from 0."
            yield Cause("lost core", text)
            return
        lost = [name for name in names if right[name].any() and not wrong[name].any()]
        if lost:
            text = f"Side {side} has gradients of {_named(lost)} that are zero."
            yield Cause("lost gradient", text)
            return


def _kept_gradients(evidence: Evidence, names: list[str]) -> Cause | None:
    a, b = evidence.values(GRADIENTS)
    before = evidence.states[0][0].values.get(GRADIENTS, {}) if evidence.states else {}
    for one, other, side in ((a, b, "B"), (b, a, "A")):
        if all(
            name in before
            and before[name].shape == one[name].shape == other[name].shape
            and close(one[name] + before[name], other[name], 1e-5)
            for name in names
        ):
            text = f"Side {side} adds the gradients of {_named(names)} to those of the step "
            text += "before: they are not set to zero, as optimizer.zero_grad() does."
            return Cause("kept gradients", text)
    return None


def _zero_cores(wrong: Array, right: Array, cores: int) -> list[int]:
    if len(wrong) % cores:
        return []
    parts = zip(np.split(wrong, cores), np.split(right, cores), strict=True)
    return [core for core, (one, other) in enumerate(parts) if other.any() and not one.any()]


def _diverging(evidence: Evidence, group: str) -> list[str]:
    return [
        name
        for (of_group, name), one in evidence.residuals.items()
        if of_group == group and evidence.diverges(group, name, one.a, one.b)
    ]


def _moves(evidence: Evidence, name: str) -> str:
    residual = evidence.residuals[VARIABLES, name]
    moved, further = np.ravel(residual.moved), np.ravel(residual.apart)
    large = np.abs(moved) > 1e-3 * np.max(np.abs(moved), initial=0.0)
    if not large.any() or not np.isfinite(further).all():
        return ""
    factors = 1 + further[large] / moved[large]
    factor = float(np.median(factors))
    agree = np.mean(np.abs(factors - factor) <= 1e-3 * abs(factor))
    return f" (side B moves it {factor:.4g} times as far)" if agree > 0.5 else ""


def _named(names: list[str]) -> str:
    return some(sorted(names), _FEW)
