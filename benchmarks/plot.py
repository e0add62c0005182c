"""Draws line charts with two logarithmic axes, as SVG documents."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from estimator_bridge import svg

WIDTH, HEIGHT = 560, 340
LEFT, RIGHT, TOP, BOTTOM = 70, 150, 40, 50
COLOURS = ("#1b6ca8", "#c8553d", "#4f772d", "#6d597a")

Points = Sequence[tuple[float, float]]


def chart(title: str, x_name: str, y_name: str, lines: Mapping[str, Points]) -> str:
    """Draws a chart as an SVG document.

    Args:
        title: the title of the chart.
        x_name, y_name: the titles of the axes.
        lines: maps each line's name to its points, whose coordinates must be positive.
    """
    xs = [x for points in lines.values() for x, _ in points]
    ys = [y for points in lines.values() for _, y in points]
    # The y axis spans at least a decade; otherwise a nearly constant line would not look flat.
    low, high = _span(ys)
    x_low, x_high = min(xs), max(max(xs), 1.01 * min(xs))

    def across(x: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(x / x_low) / math.log(x_high / x_low)

    def down(y: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(y / low) / math.log(high / low)

    parts = [
        svg.element("rect", width=WIDTH, height=HEIGHT, fill="white"),
        svg.text(LEFT, 22, title, "start", font_size="14"),
        svg.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_name),
        svg.text(LEFT, TOP - 6, y_name, "end"),
    ]
    for y in _ticks(low, high):
        parts.append(svg.line(LEFT, down(y), WIDTH - RIGHT, down(y), "#dddddd"))
        parts.append(svg.text(LEFT - 6, down(y) + 4, f"{y:g}", "end"))
    for x in sorted(set(xs)):
        base = HEIGHT - BOTTOM
        parts.append(svg.line(across(x), base, across(x), base + 4, "#444444"))
        parts.append(svg.text(across(x), base + 18, f"{x:,.0f}"))
    for number, (name, points) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        parts.append(svg.curve([(across(x), down(y)) for x, y in points], colour, radius=3))
        last = points[-1][1]
        name = f"{name} {last:.3g}"
        parts.append(svg.text(WIDTH - RIGHT + 10, down(last) + 4, name, "start", fill=colour))
    return svg.drawing(
        parts,
        f"0 0 {WIDTH} {HEIGHT}",
        xmlns="http://www.w3.org/2000/svg",
        width=WIDTH,
        height=HEIGHT,
        font_family="sans-serif",
        font_size="12",
    )


def _span(values: Sequence[float]) -> tuple[float, float]:
    """Returns the nearest powers of ten below and above all values."""
    low = 10.0 ** math.floor(math.log10(min(values)))
    high = 10.0 ** math.ceil(math.log10(max(values)))
    return low, max(high, 10 * low)


def _ticks(low: float, high: float) -> list[float]:
    """Returns 1, 2 and 5 times each power of ten, from `low` to `high`."""
    decades = range(round(math.log10(low)), round(math.log10(high)) + 1)
    ticks = [digit * 10.0**power for power in decades for digit in (1, 2, 5)]
    return [tick for tick in ticks if low <= tick <= high]
