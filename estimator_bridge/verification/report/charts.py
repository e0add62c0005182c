"""Draws the page's charts as SVG, a curve over the steps and a histogram, and explains jumps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from estimator_bridge import svg
from estimator_bridge.verification.findings import STAGES, Point, Series, listed
from estimator_bridge.verification.result import Result

_WIDTH, _HEIGHT = 760, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 14, 40
_BASE = _HEIGHT - _BOTTOM
_END = _WIDTH - _RIGHT
_ABOVE_BARS = 20
_EQUAL, _UNEQUAL, _AXIS, _GRID = "var(--equal)", "var(--bad)", "var(--ink)", "var(--faint)"

_FLOOR, _CEILING = -7, 7
"""The range of differences that is drawn, in powers of ten of the tolerance."""

# For each kind: its name in the legend, its name in sentences, and its dashes, which make curves
# distinct in black and white, too.
_STYLES = {
    "activation": ("activations", "activations", ""),
    "loss": ("loss", "the loss", "2 3"),
    "gradient": ("gradients", "gradients", "8 3"),
    "slot": ("slots of tables", "slots", "4 3"),
    "table": ("tables", "tables", ""),
    "dense": ("variables of the model", "variables of the model", "10 3 2 3"),
}

_FACTOR = 30.0
"""A curve jumps if it grows by more than this factor from one step to the next."""
_MAX_EXPLAINED = 4


def over_steps(findings: Result) -> str:
    lines = _lines(findings)
    decades = [_decade(worst.point.share) for line in lines.values() for worst in line]
    low = min([*decades, 0]) - 0.5
    high = max([*decades, 0]) + 0.5
    first, last = findings.steps[0], max(findings.steps[-1], findings.steps[0] + 1)

    def x(step: float) -> float:
        return _LEFT + (step - first) / (last - first) * (_END - _LEFT)

    def y(decade: float) -> float:
        return _TOP + (high - decade) / (high - low) * (_BASE - _TOP)

    parts = []
    for decade in range(math.ceil(low), math.floor(high) + 1):
        stroke, width = (_AXIS, "1.5") if decade == 0 else (_GRID, "1")
        parts.append(svg.line(_LEFT, y(decade), _END, y(decade), stroke, stroke_width=width))
        name = "0" if decade == _FLOOR else "allowed" if decade == 0 else _power_of_ten(decade)
        parts.append(svg.text(_LEFT - 8, y(decade) + 4, name, "end"))
    for step in range(first, last + 1, max(1, round((last - first) / 10))):
        parts.append(svg.text(x(step), _HEIGHT - 22, str(step)))
    parts.append(svg.text(_END, _HEIGHT - 6, "global step", "end"))
    for stage, line in lines.items():
        name, _, dashes = _STYLES[stage]
        colour = f"var(--{stage})"
        places = [(x(point.step), y(_decade(point.share))) for _, point in line]
        title = svg.element("title", name)
        parts.append(svg.curve(places, colour, radius=2.2, content=title, stroke_dasharray=dashes))
    return _drawing(parts, "Largest difference at each step, as a share of the allowed difference")


def legend(findings: Result) -> str:
    entries = []
    for stage in _lines(findings):
        name, _, dashes = _STYLES[stage]
        sample = svg.line(0, 5, 34, 5, f"var(--{stage})", stroke_width="2", stroke_dasharray=dashes)
        drawing = svg.element("svg", sample, width=34, height=10, aria_hidden="true")
        entries.append(f'<span class="key">{drawing} {name}</span>')
    return f'<p class="legend">{"".join(entries)}</p>'


def histogram(findings: Result) -> str:
    # The first bin is for exactly 0, the others for a decade each.
    counts = [0] * (_CEILING - _FLOOR + 2)
    for series in findings.series:
        share = series.share
        counts[0 if share == 0 else math.floor(_decade(share)) - _FLOOR + 1] += 1
    used = [i for i, count in enumerate(counts) if count]
    limit = -_FLOOR + 1
    begin, end = (min(used[0], 1), max(used[-1] + 1, limit + 2)) if used else (0, len(counts))
    width = (_END - _LEFT) / (end - begin)
    parts = []
    for i in range(begin, end):
        left = _LEFT + (i - begin) * width
        if counts[i]:
            height = (_BASE - _TOP - _ABOVE_BARS) * counts[i] / max(counts)
            top, shown = _BASE - height, width - 4
            # The bin of 10^0 begins where the tolerance ends.
            fill = _UNEQUAL if i >= limit else _EQUAL
            bar = svg.element("rect", x=left + 2, y=top, width=shown, height=height, fill=fill)
            parts.append(bar + svg.text(left + width / 2, top - 5, str(counts[i])))
        if i == 0:
            parts.append(svg.text(left + width / 2, _HEIGHT - 22, "exactly 0"))
        elif i != 1 or begin:  # the bin of 0 is not a decade
            parts.append(svg.text(left, _HEIGHT - 22, _power_of_ten(_FLOOR + i - 1)))
        if i == limit:
            parts.append(svg.line(left, _TOP, left, _BASE, _AXIS, stroke_width="1.5"))
            parts.append(svg.text(left + 6, _TOP + 10, "allowed: 1", "start"))
    parts.append(svg.line(_LEFT, _BASE, _END, _BASE, _AXIS))
    parts.append(svg.text(_END, _HEIGHT - 6, "difference / allowed", "end"))
    return _drawing(parts, "Number of arrays for each share of the allowed difference")


class _Worst(NamedTuple):
    series: Series
    point: Point


def _lines(findings: Result) -> dict[str, list[_Worst]]:
    lines: dict[str, dict[int, _Worst]] = {stage: {} for stage in STAGES}
    for series in findings.series:
        worst = lines[series.stage]
        for point in series.points:
            if point.step not in worst or point.share > worst[point.step].point.share:
                worst[point.step] = _Worst(series, point)
    return {stage: [line[step] for step in sorted(line)] for stage, line in lines.items() if line}


def _decade(share: float) -> float:
    if share == 0:
        return _FLOOR
    return min(max(math.log10(share), _FLOOR), _CEILING + 0.5) if share < math.inf else _CEILING


def _power_of_ten(exponent: int) -> str:
    digits = str(abs(exponent)).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10⁻{digits}" if exponent < 0 else f"10{digits}"


def _drawing(parts: Sequence[str], title: str) -> str:
    return svg.drawing(parts, f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=title)


def explained(findings: Result) -> list[str]:
    left: list[str] = []
    jumps: list[tuple[float, str]] = []
    for stage, worst in _lines(findings).items():
        first = next((one for one in worst if one.point.share), worst[0])
        if first is not worst[0]:
            left.append(f"at step {first.point.step} for {_STYLES[stage][1]} ({first.series.name})")
        jumps.extend(_jumps(stage, worst))
    sentences = []
    if left:
        sentences.append(
            f"Arrays that are bit for bit equal are at the bottom. Equality ends {listed(left)}."
        )
    if jumps:
        kept = sorted(jumps, reverse=True)[:_MAX_EXPLAINED]
        jumps_of_stages = " ".join(sentence for _, sentence in sorted(kept, key=lambda one: one[1]))
        sentences.append(
            "A curve jumps when another array or row has the largest share, for example a row that "
            f"occurs for the first time, or a sum whose terms cancel. {jumps_of_stages}"
        )
    return sentences


def _jumps(stage: str, worst: Sequence[_Worst]) -> Iterator[tuple[float, str]]:
    for before, after in itertools.pairwise(worst):
        if before.point.share and after.point.share > _FACTOR * before.point.share:
            growth = after.point.share / before.point.share
            other = before.series is not after.series
            moved = f" ({before.series.name} had it before)" if other else ""
            yield (
                growth,
                f"At step {after.point.step} the curve of {_STYLES[stage][1]} rises by a factor of "
                f"{growth:.0f}: {after.series.name} now has the largest share{moved}, "
                f"with a difference of {after.point.difference:.1e}.",
            )
