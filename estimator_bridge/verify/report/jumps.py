"""Explains the jumps of the curves of a page: which array causes them, and why it may."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from estimator_bridge.verify.findings import STAGES, Findings, Point, Series, listed

_FACTOR = 30.0
"""A curve jumps if it grows by more than this from one step to the next."""
_MAX_EXPLAINED = 4

_PLURALS = {
    "activation": "activations",
    "loss": "the loss",
    "gradient": "gradients",
    "slot": "slots",
    "table": "tables",
    "dense": "variables of the model",
}


def explained(findings: Findings) -> list[str]:
    """Returns the caption of the curves: where they leave 0, and where they jump."""
    left: list[str] = []
    jumps: list[tuple[float, str]] = []
    for stage in STAGES:
        worst = _worst(findings, stage)
        left.extend(_leaving_zero(stage, worst))
        jumps.extend(_jumps(stage, worst))
    sentences = []
    if left:
        sentences.append(f"What is equal to the bit is at the bottom. That ends {listed(left)}.")
    if jumps:
        kept = sorted(jumps, reverse=True)[:_MAX_EXPLAINED]
        jumps_of_stages = " ".join(sentence for _, sentence in sorted(kept, key=lambda one: one[1]))
        sentences.append(
            "Where a curve jumps, its largest share moves to another array or row, as a row that "
            f"occurs for the first time, or a sum that cancels. {jumps_of_stages}"
        )
    return sentences


class _Worst(NamedTuple):
    """The array with the largest share of the tolerance at a step."""

    share: float
    series: Series
    point: Point


def _worst(findings: Findings, stage: str) -> list[_Worst]:
    worst: dict[int, _Worst] = {}
    for series in findings.series:
        for point in series.points if series.stage == stage else ():
            if point.step not in worst or point.share > worst[point.step].share:
                worst[point.step] = _Worst(point.share, series, point)
    return [worst[step] for step in sorted(worst)]


def _leaving_zero(stage: str, worst: Sequence[_Worst]) -> Iterator[str]:
    """Says at which step a curve leaves 0, and because of which array."""
    first = next((number for number, one in enumerate(worst) if one.share), 0)
    if first:
        one = worst[first]
        yield f"at step {one.point.step} for {_PLURALS[stage]} ({one.series.name})"


def _jumps(stage: str, worst: Sequence[_Worst]) -> Iterator[tuple[float, str]]:
    for before, after in itertools.pairwise(worst):
        if before.share and after.share > _FACTOR * before.share:
            growth = after.share / before.share
            other = before.series is not after.series
            moved = f" (before it was that of {before.series.name})" if other else ""
            yield (
                growth,
                f"At step {after.point.step} the curve of {_PLURALS[stage]} rises {growth:.0f} "
                f"times: the largest share is that of {after.series.name}{moved}, "
                f"{after.point.difference:.1e} off.",
            )
