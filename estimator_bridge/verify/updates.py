"""Recognises what one side's update did otherwise, from how far tables and slots have moved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from estimator_bridge.verify import lookups
from estimator_bridge.verify.evidence import Evidence, close, slots, tables
from estimator_bridge.verify.recording import GRADIENTS, VARIABLES, Array
from estimator_bridge.verify.result import Cause, Result

# Slots that add up squares of gradients.
_SQUARES = ("accumulators", "velocities", "ms")


def wrong_updates(result: Result, evidence: Evidence) -> Iterator[Cause]:
    """Yields the causes of a step whose activations and loss agree."""
    scaled = dict(_scaled_gradients(evidence))
    if scaled:
        factors = ", ".join(f"{factor:.4g}" for factor in sorted({*scaled.values()}))
        yield Cause(
            "gradient scale",
            f"B's gradients are {factors} times A's: those of {', '.join(sorted(scaled))}.",
        )
        return
    factors_of: dict[str, float] = {}
    for table, ours, theirs in tables(result, evidence):
        before = _before(table["variable"], evidence)
        if before is None:
            continue
        name = table["name"]
        # Some rules, as Adam's, move rows as far whatever the scale: the slots know.
        applied = _applied(result, evidence, table)
        factor = _factor(ours - before, theirs - before)
        if applied is not None:
            yield Cause(
                "gradient scale",
                f"Table {name}: the gradients of the activations agree, but its slots show that B "
                f"applies {applied:.4g} times A's.",
            )
        elif close(ours, theirs):
            continue
        elif (limits := _limits_kept_once(result, name, before, ours, theirs)) is not None:
            yield Cause("clipping", f"Table {name}: only one side keeps its weights in {limits}.")
        elif factor is not None:
            factors_of[name] = factor
        else:
            yield _of_rule(result, evidence, table, ours, theirs)
    yield from _of_rates(factors_of)


def _scaled_gradients(evidence: Evidence) -> Iterator[tuple[str, float]]:
    ours, theirs = (side.values.get(GRADIENTS, {}) for side in evidence.after)
    for name in ours:
        if name in theirs and ours[name].dtype.kind == "f":
            factor = _factor(ours[name], theirs[name])
            if factor is not None:
                yield name, factor


def _applied(result: Result, evidence: Evidence, table: Mapping[str, Any]) -> float | None:
    """Returns by which factor the gradients of the sides differ, as the slots show; None if not."""
    found = slots(result, evidence, table)
    for slot, before, ours, theirs in sorted(found, key=lambda one: one[0] not in _SQUARES):
        factor = None if before is None else _factor(ours - before, theirs - before)
        if factor is not None and factor > 0:
            return float(np.sqrt(factor)) if slot in _SQUARES else factor
    return None


def _factor(moved: Array, other: Array) -> float | None:
    """Returns the one number that B's values are A's times; None if there is none, or it is 1.

    Most elements have to agree on it, not all: limits may have cut some off.
    """
    if moved.shape != other.shape:
        return None
    # What has hardly moved is mostly rounding.
    large = np.abs(moved) > 1e-3 * np.max(np.abs(moved), initial=0.0)
    # One element has a factor always.
    if np.count_nonzero(large) < 2:
        return None
    factors = other[large].astype(np.float64) / moved[large]
    factor = float(np.median(factors))
    agree = np.mean(np.abs(factors - factor) <= 1e-3 * abs(factor))
    return factor if agree > 0.5 and abs(factor - 1) > 1e-3 else None


def _limits_kept_once(
    result: Result, table: str, before: Array, ours: Array, theirs: Array
) -> str | None:
    """Returns the limits of a table's weights if one side keeps them and the other does not."""
    # Only an update clips: a row that was never touched may be anywhere.
    moved = np.any((ours != before) | (theirs != before), axis=1)
    for settings in result.settings:
        limits = {"clip_weight_min": -np.inf, "clip_weight_max": np.inf}
        for where, name, value, _ in settings["settings"]:
            short = name.rpartition(".")[2]
            if short in limits and value != "not set" and where in ("spec", f"table {table}"):
                limits[short] = float(value)
        low, high = (np.float32(limit) for limit in limits.values())
        kept = [
            bool(np.all((rows >= low) & (rows <= high))) for rows in (ours[moved], theirs[moved])
        ]
        if kept[0] != kept[1]:
            return f"[{low:g}, {high:g}]"
    return None


def _of_rule(
    result: Result, evidence: Evidence, table: Mapping[str, Any], ours: Array, theirs: Array
) -> Cause:
    name = table["name"]
    off = np.abs(ours - theirs).max(1) > 1e-6 * max(float(np.abs(ours).max()), 1e-30)
    twice = _rows_seen_twice(table, evidence)
    if twice and {*np.flatnonzero(off).tolist()} <= twice:
        return Cause(
            "dropped duplicate",
            f"Table {name}: the rows that differ are all among the {len(twice)} that occur more "
            "than once in the batch: one side does not sum their gradients.",
        )
    found = [close(one, other) for _, _, one, other in slots(result, evidence, table)]
    if found and all(found):
        return Cause(
            "update rule",
            f"Table {name}: activations, gradients and slots agree, and the rows do not. What the "
            "rule makes of them differs: its epsilon, rate, decay, or clipping of weights.",
        )
    what = "rows and slots" if found else "rows"
    return Cause(
        "update",
        f"Table {name}: activations and gradients agree, and {what} do not. The update differs: "
        "clipping of gradients, the sums of a row's gradients, or a setting of the rule.",
    )


def _rows_seen_twice(table: Mapping[str, Any], evidence: Evidence) -> set[int]:
    if evidence.batch is None:
        return set()
    ids = []
    for feature in lookups.features_of([table]).values():
        found = lookups.occurrences(evidence.batch, feature)
        if found is None:
            return set()
        ids.append(found.ids)
    distinct, counts = np.unique(np.concatenate(ids), return_counts=True)
    return {*distinct[counts > 1].tolist()}


def _of_rates(factors: Mapping[str, float]) -> Iterator[Cause]:
    told: set[str] = set()
    names = sorted(factors)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            if abs(factors[one] * factors[other] - 1) < 1e-2 and not told & {one, other}:
                told |= {one, other}
                yield Cause(
                    "rate tag",
                    f"B moves table {one} {factors[one]:.4g} times as far as A, and table {other} "
                    f"{factors[other]:.4g} times: they have each other's learning rates.",
                )
    for name in names:
        if name not in told and factors[name] == 0:
            yield Cause("no update", f"Table {name}: A updates its rows in this step, B does not.")
        elif name not in told:
            yield Cause(
                "learning rate",
                f"Table {name}: B moves every row {factors[name]:.4g} times as far as A, and the "
                "gradients of the activations agree. The learning rates differ, or a factor on "
                "the gradients.",
            )


def _before(name: str, evidence: Evidence) -> Array | None:
    if evidence.before is None:
        return None
    return evidence.before[0].values[VARIABLES].get(name)
