"""The charts of the page, as SVG: differences over the steps, and a histogram of their sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from estimator_bridge import svg
from estimator_bridge.verify.findings import STAGES, Findings, Series

_WIDTH, _HEIGHT = 760, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 14, 40
_BASE = _HEIGHT - _BOTTOM
_END = _WIDTH - _RIGHT
_ABOVE_BARS = 20
_EQUAL, _UNEQUAL, _AXIS = "#0b5fa5", "#a01622", "#111"

_FLOOR, _CEILING = -7, 7
"""Decades of the tolerance that are drawn; what is beyond is drawn at the edge."""


class _Style(NamedTuple):
    plural: str
    colour: str
    dashes: str


# Distinct in black and white too.
_STYLES = {
    "activation": _Style("activations", "#0b5fa5", ""),
    "loss": _Style("loss", "#444444", "2 3"),
    "gradient": _Style("gradients", "#9a5b00", "8 3"),
    "slot": _Style("slots of tables", "#6b2f8a", "4 3"),
    "table": _Style("tables", "#a01622", ""),
    "dense": _Style("variables of the model", "#1c6b3c", "10 3 2 3"),
}


class _Line(NamedTuple):
    style: _Style
    points: list[tuple[int, float]]


def over_steps(findings: Findings) -> str:
    """Returns a chart: for each kind of array the largest share of the tolerance, by step."""
    lines = list(_lines(findings.series))
    decades = [_decade(share) for line in lines for _, share in line.points]
    low = min([*decades, 0]) - 0.5
    high = max([*decades, 0]) + 0.5
    first, last = findings.steps[0], max(findings.steps[-1], findings.steps[0] + 1)

    def x(step: float) -> float:
        return _LEFT + (step - first) / (last - first) * (_END - _LEFT)

    def y(decade: float) -> float:
        return _TOP + (high - decade) / (high - low) * (_BASE - _TOP)

    parts = [*_grid(y, low, high), *_step_ticks(x, first, last)]
    for style, points in lines:
        curve = svg.curve(
            [(x(step), y(_decade(share))) for step, share in points],
            style.colour,
            radius=2.2,
            content=svg.element("title", style.plural),
            stroke_dasharray=style.dashes,
        )
        parts.append(curve)
    return _drawing(parts, "Largest difference over the steps, as a share of what is allowed")


def legend(findings: Findings) -> str:
    """Returns the legend of `over_steps`, as HTML."""
    entries = []
    for style, _ in _lines(findings.series):
        dashes = {"stroke_width": "2", "stroke_dasharray": style.dashes}
        sample = svg.line(0, 5, 34, 5, style.colour, **dashes)
        drawing = svg.element("svg", sample, width=34, height=10, aria_hidden="true")
        entries.append(f'<span class="key">{drawing} {style.plural}</span>')
    return f'<p class="legend">{"".join(entries)}</p>'


def histogram(findings: Findings) -> str:
    """Returns a chart: how many arrays use which share of the tolerance, at their worst step."""
    # The first bin holds what is exactly 0, the others a decade each.
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
            # The bin of 10^0 holds what is allowed to ten times that.
            colour = _UNEQUAL if i >= limit else _EQUAL
            parts.append(_bar(left, width, counts[i], max(counts), colour))
        if i == 0:
            parts.append(svg.text(left + width / 2, _HEIGHT - 22, "exactly 0"))
        elif i != 1 or begin:  # The bin of 0 is no decade below the first one.
            parts.append(svg.text(left, _HEIGHT - 22, _power_of_ten(_FLOOR + i - 1)))
        if i == limit:
            parts.append(svg.line(left, _TOP, left, _BASE, _AXIS, stroke_width="1.5"))
            parts.append(svg.text(left + 6, _TOP + 10, "allowed: 1", "start"))
    parts.append(svg.line(_LEFT, _BASE, _END, _BASE, _AXIS))
    parts.append(svg.text(_END, _HEIGHT - 6, "difference / allowed", "end"))
    return _drawing(parts, "Arrays by the share of what is allowed that they use")


def _bar(left: float, width: float, count: int, largest: int, colour: str) -> str:
    height = (_BASE - _TOP - _ABOVE_BARS) * count / largest
    top = _BASE - height
    bar = svg.element("rect", x=left + 2, y=top, width=width - 4, height=height, fill=colour)
    return bar + svg.text(left + width / 2, top - 5, str(count))


def _lines(series: Sequence[Series]) -> Iterator[_Line]:
    """Yields for each kind of array the largest share of the tolerance at each step."""
    for stage in STAGES:
        worst: dict[int, float] = {}
        for one in series:
            if one.stage == stage:
                for point in one.points:
                    worst[point.step] = max(worst.get(point.step, 0.0), point.share)
        if worst:
            yield _Line(_STYLES[stage], sorted(worst.items()))


def _decade(share: float) -> float:
    """Returns the decade of a share of the tolerance, limited to what is drawn."""
    if share == 0:
        return _FLOOR
    return min(max(math.log10(share), _FLOOR), _CEILING + 0.5) if share < math.inf else _CEILING


def _grid(y: Callable[[float], float], low: float, high: float) -> Iterator[str]:
    for decade in range(math.ceil(low), math.floor(high) + 1):
        stroke, width = (_AXIS, "1.5") if decade == 0 else ("#ddd", "1")
        yield svg.line(_LEFT, y(decade), _END, y(decade), stroke, stroke_width=width)
        name = "0" if decade == _FLOOR else "allowed" if decade == 0 else _power_of_ten(decade)
        yield svg.text(_LEFT - 8, y(decade) + 4, name, "end")


def _step_ticks(x: Callable[[float], float], first: int, last: int) -> Iterator[str]:
    for step in range(first, last + 1, max(1, round((last - first) / 10))):
        yield svg.text(x(step), _HEIGHT - 22, str(step))
    yield svg.text(_END, _HEIGHT - 6, "global step", "end")


def _power_of_ten(exponent: int) -> str:
    """Returns a power of ten; the minus is of its own, which the fonts of superscripts lack."""
    digits = str(abs(exponent)).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10⁻{digits}" if exponent < 0 else f"10{digits}"


def _drawing(parts: Sequence[str], title: str) -> str:
    return svg.drawing(parts, f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=title)
