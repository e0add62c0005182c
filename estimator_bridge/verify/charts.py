"""The drawings of the page, as SVG: how far the sides are apart over the steps, and how often."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from estimator_bridge.verify.result import STAGES, Result, Series, share

_WIDTH, _HEIGHT = 760, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 14, 40
_PLURALS = {
    "activation": "activations",
    "loss": "loss",
    "gradient": "gradients",
    "slot": "slots of tables",
    "table": "tables",
    "dense": "variables of the model",
}
# Told apart in black and white too.
_STROKES = {
    "activation": ("#0b5fa5", ""),
    "loss": ("#444444", "2 3"),
    "gradient": ("#9a5b00", "8 3"),
    "slot": ("#6b2f8a", "4 3"),
    "table": ("#a01622", ""),
    "dense": ("#1c6b3c", "10 3 2 3"),
}
_FLOOR, _CEILING = -7, 7
"""Decades of what is allowed that are drawn; what is beyond is drawn at the edge."""


class _Line(NamedTuple):
    role: str
    points: list[tuple[int, float]]


def over_steps(result: Result) -> str:
    """Returns a chart: for each kind of array the largest share of what is allowed, by step."""
    lines = list(_lines(result.series))
    decades = [_decade(value) for line in lines for _, value in line.points]
    low = min([*decades, 0]) - 0.5
    high = max([*decades, 0]) + 0.5
    first, last = result.steps[0], max(result.steps[-1], result.steps[0] + 1)

    def x(step: float) -> float:
        return _LEFT + (step - first) / (last - first) * (_WIDTH - _LEFT - _RIGHT)

    def y(decade: float) -> float:
        return _TOP + (high - decade) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [_grid(y, low, high), *_step_ticks(x, first, last)]
    for role, points in lines:
        colour, dashes = _STROKES[role]
        path = " ".join(f"{x(step):.1f},{y(_decade(value)):.1f}" for step, value in points)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" '
            f'stroke-dasharray="{dashes}"><title>{_PLURALS[role]}</title></polyline>'
        )
        parts.extend(
            f'<circle cx="{x(step):.1f}" cy="{y(_decade(value)):.1f}" r="2.2" fill="{colour}"/>'
            for step, value in points
        )
    return _svg("".join(parts), "Largest difference over the steps, as a share of what is allowed")


def legend(result: Result) -> str:
    """Returns what the lines of `over_steps` are, as HTML."""
    entries = []
    for role, _ in _lines(result.series):
        colour, dashes = _STROKES[role]
        entries.append(
            '<span class="key"><svg width="34" height="10" aria-hidden="true"><line x1="0" y1="5" '
            f'x2="34" y2="5" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/></svg>'
            f" {_PLURALS[role]}</span>"
        )
    return f'<p class="legend">{"".join(entries)}</p>'


def histogram(result: Result) -> str:
    """Returns a chart: how many arrays use which share of what is allowed, at their worst step."""
    shares = [series.share for series in result.series]
    names = ["0", *(f"10{_raised(decade)}" for decade in range(_FLOOR, _CEILING + 1))]
    counts = [0] * len(names)
    for value in shares:
        counts[0 if value == 0 else math.floor(_decade(value)) - _FLOOR + 1] += 1
    used = [i for i, count in enumerate(counts) if count]
    begin, end = (min(used[0], 1), max(used[-1] + 1, -_FLOOR + 3)) if used else (0, len(names))
    width = (_WIDTH - _LEFT - _RIGHT) / (end - begin)
    height = _HEIGHT - _TOP - _BOTTOM - 20
    parts = []
    for place, i in enumerate(range(begin, end)):
        left, tall = _LEFT + place * width, height * counts[i] / max(counts)
        top = _TOP + 20 + height - tall
        # The bin of 10^0 holds what is allowed to ten times that.
        colour = "#a01622" if i > -_FLOOR else "#0b5fa5"
        if counts[i]:
            parts.append(
                f'<rect x="{left + 2:.1f}" y="{top:.1f}" width="{width - 4:.1f}" '
                f'height="{tall:.1f}" fill="{colour}"/>'
                f'<text x="{left + width / 2:.1f}" y="{top - 5:.1f}" text-anchor="middle">'
                f"{counts[i]}</text>"
            )
        at = left + width / 2 if i == 0 else left
        if i != 1 or begin:  # Left of it is no decade, but what is exactly 0.
            parts.append(_text(at, _HEIGHT - 22, "exactly 0" if i == 0 else names[i], "middle"))
        if i == -_FLOOR + 1:
            parts.append(
                f'<line x1="{left:.1f}" x2="{left:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" '
                'stroke="#111" stroke-width="1.5"/>'
                + _text(left + 6, _TOP + 10, "allowed: 1", "start")
            )
    base = _HEIGHT - _BOTTOM
    parts.append(
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{base}" y2="{base}" stroke="#111"/>'
    )
    parts.append(_text(_WIDTH - _RIGHT, _HEIGHT - 6, "difference / allowed", "end"))
    return _svg("".join(parts), "Arrays by the share of what is allowed that they use")


def _lines(series: Sequence[Series]) -> Iterator[_Line]:
    for role in STAGES:
        worst: dict[int, float] = {}
        for one in series:
            if one.role.split()[0] == role:
                for point in one.points:
                    worst[point.step] = max(worst.get(point.step, 0.0), share(point))
        if worst:
            yield _Line(role, sorted(worst.items()))


def _decade(value: float) -> float:
    """Returns the decade of a share of what is allowed, kept within what is drawn."""
    if value == 0:
        return _FLOOR
    return min(max(math.log10(value), _FLOOR), _CEILING + 0.5) if value < math.inf else _CEILING


def _grid(y: object, low: float, high: float) -> str:
    assert callable(y)
    parts = []
    for decade in range(math.ceil(low), math.floor(high) + 1):
        stroke = '#111" stroke-width="1.5' if decade == 0 else "#ddd"
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(decade):.1f}" y2="{y(decade):.1f}" '
            f'stroke="{stroke}"/>'
        )
        name = "0" if decade == _FLOOR else "allowed" if decade == 0 else f"10{_raised(decade)}"
        parts.append(_text(_LEFT - 8, y(decade) + 4, name, "end"))
    return "".join(parts)


def _step_ticks(x: object, first: int, last: int) -> Iterator[str]:
    assert callable(x)
    every = max(1, round((last - first) / 10))
    for step in range(first, last + 1, every):
        yield _text(x(step), _HEIGHT - 22, str(step), "middle")
    yield _text(_WIDTH - _RIGHT, _HEIGHT - 6, "global step", "end")


def _raised(number: int) -> str:
    """Returns an exponent; a minus of its own, which the fonts of superscripts lack."""
    digits = str(abs(number)).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"⁻{digits}" if number < 0 else digits


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _svg(content: str, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(title)}">'
        f"{content}</svg>"
    )
