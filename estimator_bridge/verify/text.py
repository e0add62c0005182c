"""A result as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from estimator_bridge.verify.names import DENSE, TABLE
from estimator_bridge.verify.recording import CHECKPOINT, TF2
from estimator_bridge.verify.result import Result, Series

_SHOWN = 12

ENGINES = {
    "stock": "stock's TPUEstimator",
    "bridge": "the bridge",
    TF2: "a program of TensorFlow 2",
    CHECKPOINT: "a checkpoint",
}

NUMBERS = ("largest", "relative", "ULPs", "of allowed")
"""Of an array: its largest difference, and the largest share of what is allowed at a step."""


def lines(result: Result) -> Iterator[str]:
    """Yields the lines: the verdict, its causes, and the arrays, what diverged first in front."""
    for letter, side in zip("AB", result.settings, strict=True):
        yield f"{letter}: {side_line(side)}"
    yield f"{verdict(result)}"
    for note in result.notes:
        yield f"Note: {note}"
    yield f"Tolerance: {tolerance_line(result)}"
    yield ""
    for cause in result.causes:
        yield f"  {cause.name}: {cause.text}"
    if result.causes:
        yield ""
    yield from _arrays(result)
    yield from _others(result)


def verdict(result: Result) -> str:
    """Returns the verdict in a sentence."""
    steps = max(len(result.steps) - 1, 0)
    if result.equal:
        largest = max((s.largest.difference for s in result.series if s.points), default=0.0)
        how = "to the bit" if largest == 0 else f"within the tolerance (at most {largest:.2g} off)"
        return f"EQUAL {how}: {len(result.series)} arrays in {steps} steps, {_outcomes(result)}."
    first = result.first
    if first is None:
        return f"NOT EQUAL: {'; '.join(reasons(result))}."
    where = f"table {first.table}, " if first.table and first.role != TABLE else ""
    return f"NOT EQUAL: first in {where}{described(first)}, {first.first}."


def described(series: Series) -> str:
    """Returns what an array is, with its name."""
    if series.role == TABLE:
        return f"table {series.table}, whose rows are in {series.name}"
    return series.name if series.name == series.role else f"{role(series)} {series.name}"


def role(series: Series) -> str:
    """Returns what an array is."""
    return "variable" if series.role == DENSE else series.role


def reasons(result: Result) -> list[str]:
    """Returns what besides the arrays of the steps keeps the sides from being equal."""
    found = list(result.remarks)
    if not result.series:
        found.append("nothing was compared")
    if result.config:
        found.append(f"the device configurations differ in {len(result.config)} fields")
    if result.batches.first_different is not None:
        found.append(f"the sides read other data from batch {result.batches.first_different} on")
    found.extend(
        f"{len(names)} arrays are on side {side} alone"
        for side, names in zip("AB", result.only, strict=True)
        if names
    )
    found.extend(
        f"{outcome.kind} {outcome.name} {outcome.note or f'differs by {outcome.difference:.3g}'}"
        for outcome in result.outcomes
        if not outcome.equal
    )
    return found


def side_line(side: Mapping[str, Any]) -> str:
    """Returns what a side is in a line."""
    engine = ENGINES[side["engine"]]
    if side["engine"] == CHECKPOINT:
        return f"{engine}, {side['where']}"
    mode = "" if side["engine"] == TF2 else f", use_tpu={side['use_tpu']}"
    return (
        f"{engine}, TensorFlow {side['tensorflow']}{mode}: {side['where']}, {side['cores']} core(s)"
    )


def tolerance_line(result: Result) -> str:
    """Returns what is allowed in a sentence."""
    said = (
        f"float32 rounding of sums of up to {result.num_terms} terms, growing with the steps "
        "(docs/numerics.md)"
    )
    if result.measured:
        said += (
            "; and 8 times what side A moves when its start is changed in the last bits, as "
            "measured with this model"
        )
    return said + "."


def _outcomes(result: Result) -> str:
    kinds = {outcome.kind.partition("-")[0] for outcome in result.outcomes}
    return f"and {', '.join(sorted(kinds))}" if kinds else "nothing else to compare"


def _arrays(result: Result) -> Iterator[str]:
    rows = [["array", "what", *NUMBERS, "first divergence"]]
    rows.extend(row(series) for series in result.series[:_SHOWN])
    yield from _table(rows)
    if len(result.series) > _SHOWN:
        rest = result.series[_SHOWN:]
        off = sum(series.first is not None for series in rest)
        yield f"  and {len(rest)} more, {off} of which differ (--json or --html has all)"


def row(series: Series) -> list[str]:
    """Returns an array as cells: name, role, `NUMBERS`, first divergence."""
    numbers = ["shapes", "", "", ""]
    if series.points:
        largest = series.largest
        numbers = [
            f"{largest.difference:.2e}",
            f"{largest.relative:.1e}",
            f"{largest.ulps}",
            f"{series.share:.1e}",
        ]
    first = series.first
    where = "-" if first is None else f"step {first.step}"
    if first is not None and first.row is not None:
        where += f", row {first.row}"
    return [series.name, role(series), *numbers, where]


def _others(result: Result) -> Iterator[str]:
    for reason in reasons(result):
        yield f"  {reason}"
    for difference in result.config or ():
        yield f"    {difference.name}: {difference.a} on A, {difference.b} on B"
    for why, names in _ignored(result).items():
        yield f"  {why}: {', '.join(names)}"


def _ignored(result: Result) -> dict[str, list[str]]:
    """Returns, for each reason and side, the settings that are ignored."""
    found: dict[str, list[str]] = {}
    for letter, side in zip("AB", result.settings, strict=True):
        for where, name, value, why in side["settings"]:
            # An optimizer goes without saying with its settings.
            if why and "." not in name:
                found.setdefault(f"ignored on {letter}, because {why}", []).append(
                    f"`{name}`={value} ({where})"
                )
    return found


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = (
            cell.rjust(width) if 2 <= i <= 5 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  " + "  ".join(cells).rstrip()
