"""Line charts as self-contained SVG, both axes logarithmic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

WIDTH, HEIGHT = 560, 340
LEFT, RIGHT, TOP, BOTTOM = 70, 150, 40, 50
COLOURS = ("#1b6ca8", "#c8553d", "#4f772d", "#6d597a")

Points = Sequence[tuple[float, float]]


def chart(title: str, x_name: str, y_name: str, lines: Mapping[str, Points]) -> str:
    """Returns an SVG document.

    Args:
        lines: for each name the points, all coordinates positive.
    """
    xs = [x for points in lines.values() for x, _ in points]
    ys = [y for points in lines.values() for _, y in points]
    # From zero slope a line looks flat only if the axis spans enough: a decade at least.
    low, high = _span(ys)
    x_low, x_high = min(xs), max(max(xs), 1.01 * min(xs))

    def across(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(x / x_low) / math.log(x_high / x_low)

    def down(y: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(y / low) / math.log(high / low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, 22, title, "start", ' font-size="14"'),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_name),
        _text(LEFT, TOP - 6, y_name, "end"),
    ]
    for y in _ticks(low, high):
        parts.append(_line(LEFT, down(y), WIDTH - RIGHT, down(y), "#dddddd"))
        parts.append(_text(LEFT - 6, down(y) + 4, f"{y:g}", "end"))
    for x in sorted(set(xs)):
        parts.append(_line(across(x), HEIGHT - BOTTOM, across(x), HEIGHT - BOTTOM + 4, "#444444"))
        parts.append(_text(across(x), HEIGHT - BOTTOM + 18, f"{x:,.0f}"))
    for number, (name, points) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, y in points:
            parts.append(f'<circle cx="{across(x):.1f}" cy="{down(y):.1f}" r="3" fill="{colour}"/>')
        x, y = points[-1]
        parts.append(
            _text(WIDTH - RIGHT + 10, down(y) + 4, f"{name} {y:.3g}", "start", f' fill="{colour}"')
        )
    return "\n".join([*parts, "</svg>", ""])


def _span(values: Sequence[float]) -> tuple[float, float]:
    """Returns the powers of ten around the values."""
    low = 10.0 ** math.floor(math.log10(min(values)))
    high = 10.0 ** math.ceil(math.log10(max(values)))
    return low, max(high, 10 * low)


def _ticks(low: float, high: float) -> list[float]:
    """Returns 1, 2 and 5 of every power of ten."""
    decades = range(round(math.log10(low)), round(math.log10(high)) + 1)
    found = [digit * 10.0**power for power in decades for digit in (1, 2, 5)]
    return [tick for tick in found if low <= tick <= high]


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> str:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escaped}</text>'
