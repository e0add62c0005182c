"""Recognises wrong updates from the distances by which tables and slots moved in a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from estimator_bridge.recording.files import GRADIENTS, VARIABLES, TableDescription
from estimator_bridge.verification.compare.arithmetic import lookups
from estimator_bridge.verification.findings import Cause, Evidence, close, some
from tf2_engine.types import Array

_MEASURABLE = 20.0
"""A factor is only measured at elements that move by at least this multiple of their tolerance."""
# Slots that sum squares of gradients.
_SQUARES = ("accumulators", "velocities", "ms")
_FEW = 5


def wrong_updates(evidence: Evidence) -> Iterator[Cause]:
    a, b = evidence.values(GRADIENTS)
    names = [name for name in a if name in b and a[name].dtype.kind == "f"]
    scaled = {
        name: _factor_of(evidence, (GRADIENTS, name), 0.0, a[name], b[name]) for name in names
    }
    factors = {name: factor for name, factor in scaled.items() if factor is not None}
    if factors:
        shown = ", ".join(sorted({f"{factor:.6g}" for factor in factors.values()}))
        yield Cause(
            "gradient scale",
            f"The gradients of {', '.join(sorted(factors))} on side B are {shown} times A's.",
        )
        return
    factors_of: dict[str, float] = {}
    for table, a, b in evidence.tables():
        key = VARIABLES, table["variable"]
        before = evidence.before_of(table["variable"])
        if before is None:
            continue
        cause = _of_slots(evidence, table) or _of_limits(evidence, table["name"], before, a, b)
        factor = _factor_of(evidence, key, before, a, b)
        differs = evidence.diverges(*key, a, b)
        if cause is not None:
            yield cause
        elif factor is not None and differs:
            factors_of[table["name"]] = factor
        elif differs:
            yield _of_rule(evidence, table, a, b)
    yield from _of_rates(factors_of)


def _factor_of(
    evidence: Evidence, key: tuple[str, str], before: Array | float, a: Array, b: Array
) -> float | None:
    residual = evidence.residuals.get(key)
    if residual is None:
        return _factor(np.asarray(a - before), np.asarray(b - before))
    if key in evidence.systematic:
        return 1 + evidence.systematic[key]
    moved, further = residual.moved.ravel(), residual.apart.ravel()
    allowed = np.broadcast_to(residual.allowed, residual.moved.shape).ravel()
    large = (np.abs(moved) > _MEASURABLE * allowed) & np.isfinite(further)
    # Some factor always fits if there is only one element.
    if np.count_nonzero(large) < 2:
        return None
    moved, further, allowed = moved[large], further[large], allowed[large]
    factor = float(np.median(further / moved))
    agree = np.abs(further - factor * moved) <= allowed + 1e-3 * np.abs(factor * moved)
    seen = np.abs(factor * moved) > allowed
    return 1 + factor if np.mean(agree) > 0.5 and np.mean(seen) > 0.1 else None


def _of_slots(evidence: Evidence, table: TableDescription) -> Cause | None:
    """Compares slots, because with some rules (Adam) rows do not show the scale of gradients."""
    slots = sorted(evidence.slots(table), key=lambda slot: slot[0] not in _SQUARES)
    for name, variable, a, b in slots:
        before = evidence.before_of(variable)
        if before is None:
            continue
        factor = _factor_of(evidence, (VARIABLES, variable), before, a, b)
        if factor is not None and factor > 0:
            applied = float(np.sqrt(factor)) if name in _SQUARES else factor
            return Cause(
                "gradient scale",
                f"Table {table['name']}: the gradients of the activations agree, but its slots "
                f"show that B applies {applied:.6g} times A's gradients.",
            )
    return None


def _factor(a: Array, b: Array) -> float | None:
    if a.shape != b.shape:
        return None
    # Small values are mostly rounding errors.
    large = np.abs(a) > 1e-3 * np.max(np.abs(a), initial=0.0)
    # Some factor always fits if there is only one element.
    if np.count_nonzero(large) < 2:
        return None
    factors = b[large].astype(np.float64) / a[large]
    factor = float(np.median(factors))
    agree = np.mean(np.abs(factors - factor) <= 1e-3 * abs(factor))
    return factor if agree > 0.5 and abs(factor - 1) > 1e-3 else None


def _of_limits(evidence: Evidence, table: str, before: Array, a: Array, b: Array) -> Cause | None:
    if np.array_equal(a, b):
        return None
    # Only updates clip, so a row that was never updated may be beyond the limits.
    moved = np.any((a != before) | (b != before), axis=1)
    for settings in evidence.settings:
        limits = {"clip_weight_min": -np.inf, "clip_weight_max": np.inf}
        for where, name, value, _ in settings["settings"]:
            field = name.rpartition(".")[2]
            if field in limits and value != "not set" and where in ("spec", f"table {table}"):
                limits[field] = float(value)
        low, high = (np.float32(limit) for limit in limits.values())
        kept = [bool(np.all((rows >= low) & (rows <= high))) for rows in (a[moved], b[moved])]
        if kept[0] != kept[1]:
            text = f"Table {table}: only one side keeps its weights in [{low:g}, {high:g}]."
            return Cause("clipping", text)
    return None


def _of_rule(evidence: Evidence, table: TableDescription, a: Array, b: Array) -> Cause:
    name = table["name"]
    repeated = _repeated_ids(evidence, table)
    if repeated and _differing_rows(evidence, table, a, b) <= repeated:
        return Cause(
            "dropped duplicate",
            f"Table {name}: all rows that differ occur more than once in the batch, which has "
            f"{len(repeated)} such rows. So one side does not sum the gradients of these rows.",
        )
    slots_agree = [
        not evidence.diverges(VARIABLES, variable, a, b)
        for _, variable, a, b in evidence.slots(table)
    ]
    if slots_agree and all(slots_agree):
        return Cause(
            "update rule",
            f"Table {name}: activations, gradients and slots agree, but the rows differ. So the "
            "update rule differs: its epsilon, rate, decay, or clipping of weights.",
        )
    what = "rows and slots" if slots_agree else "rows"
    return Cause(
        "update",
        f"Table {name}: activations and gradients agree, but {what} differ. So the updates "
        "differ: either how gradients are clipped or summed for a row, or a setting of the rule.",
    )


def _differing_rows(evidence: Evidence, table: TableDescription, a: Array, b: Array) -> set[int]:
    residual = evidence.residuals.get((VARIABLES, table["variable"]))
    if residual is None or residual.rows is None:
        largest = max(float(np.abs(a).max()), 1e-30)
        return {*np.flatnonzero(np.abs(a - b).max(1) > 1e-6 * largest).tolist()}
    return {*residual.rows[residual.beyond.any(axis=1)].tolist()}


def _repeated_ids(evidence: Evidence, table: TableDescription) -> set[int]:
    if evidence.batch is None:
        return set()
    ids = []
    for feature in lookups.features_of([table]).values():
        occurrences = lookups.occurrences(evidence.batch, feature)
        if occurrences is None:
            return set()
        ids.append(occurrences.ids)
    if not ids:  # no feature looks up in the table
        return set()
    distinct, counts = np.unique(np.concatenate(ids), return_counts=True)
    return {*distinct[counts > 1].tolist()}


def _of_rates(factors: Mapping[str, float]) -> Iterator[Cause]:
    swapped: set[str] = set()
    names = sorted(factors)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            # Factors close to 1 may be inverse to each other by chance.
            inverse = abs(factors[one] * factors[other] - 1) < 1e-2 < abs(factors[one] - 1)
            if inverse and not swapped & {one, other}:
                swapped |= {one, other}
                yield Cause(
                    "rate tag",
                    f"B moves table {one} {factors[one]:.6g} times as far as A, and table {other} "
                    f"{factors[other]:.6g} times as far. So the learning rates of the two tables "
                    "are swapped.",
                )
    for name in names:
        if name in swapped:
            continue
        if factors[name] == 0:
            yield Cause("no update", f"Table {name}: A updates rows in this step, but B does not.")
        else:
            yield Cause(
                "learning rate",
                f"Table {name}: B moves every row {factors[name]:.6g} times as far as A, although "
                "the gradients of the activations agree. So the learning rates differ, or one side "
                "multiplies the gradients by a factor.",
            )


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
            f"All gradients agree, but variables without a gradient differ: {_named(others)}"
            f"{_moves(evidence, others[0])}. Such variables are updated by ops of the program, "
            "like the moving averages of a batch norm, or a counter.",
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
            text += f"{zero[named[0]][0]} (counted from 0)."
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
            text = f"Side {side} adds the gradients of {_named(names)} to those of the previous "
            text += "step. Set them to zero in every step, for example with optimizer.zero_grad()."
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
