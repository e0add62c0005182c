"""Draws a plan: samples per second for each number of machines, beside a line of linear growth."""

from __future__ import annotations

import math

from estimator_bridge import svg
from estimator_bridge.planner.capacity import CapacityPlan
from estimator_bridge.planner.step_time import shown

_WIDTH, _HEIGHT = 760, 360
_LEFT, _RIGHT, _TOP, _BASE = 84, 736, 48, 304
_LINE, _AXIS, _GRID = "#2563a6", "#333333", "#cccccc"


def chart(plan: CapacityPlan) -> str:
    rows = [row for row in plan.growth if row.samples_per_second > 0]
    points = [(row.machines, row.samples_per_second) for row in rows]
    rates = [rate for _, rate in points] or [1.0]
    low = math.floor(math.log10(min(rates)))
    high = max(math.ceil(math.log10(max(rates))), low + 1)

    def x(machines: float) -> float:
        return _LEFT + math.log10(machines) / 3 * (_RIGHT - _LEFT)

    def y(rate: float) -> float:
        return _BASE - (math.log10(rate) - low) / (high - low) * (_BASE - _TOP)

    parts = [
        svg.element("rect", x=0, y=0, width=_WIDTH, height=_HEIGHT, fill="white"),
        svg.text(_LEFT, 22, f"{plan.job.subject}: samples a second (a model)", "start"),
    ]
    for decade in range(low, high + 1):
        parts.append(svg.line(_LEFT, y(10.0**decade), _RIGHT, y(10.0**decade), _GRID))
        parts.append(svg.text(_LEFT - 8, y(10.0**decade) + 4, f"{10**decade:,}", "end"))
    for machines in (1, 10, 100, 1000):
        parts.append(svg.line(x(machines), _TOP, x(machines), _BASE, _GRID))
        parts.append(svg.text(x(machines), _BASE + 18, f"{machines}"))
    parts.append(svg.line(_LEFT, _BASE, _RIGHT, _BASE, _AXIS))
    parts.append(svg.text((_LEFT + _RIGHT) / 2, _BASE + 40, "workers and parameter servers"))
    clusters = [(machines, rate) for machines, rate in points if machines > 1]
    if clusters:
        (machines, rate), top = clusters[0], 10.0**high
        # The line ends at the edge of the drawing, or at the largest number of machines.
        last = min(machines * top / rate, clusters[-1][0])
        even = [(x(machines), y(rate)), (x(last), y(rate * last / machines))]
        parts.append(svg.curve(even, _AXIS, 0.0, stroke_dasharray="6 4"))
    places = [(x(machines), y(rate)) for machines, rate in points]
    parts.append(svg.curve(places, _LINE, 3.0, content=svg.element("title", "samples a second")))
    for row, (left, top) in zip(rows, places, strict=True):
        parts.append(svg.text(left, top + 18, shown(row.time.ms), font_size="11"))
    return svg.drawing(
        parts,
        f"0 0 {_WIDTH} {_HEIGHT}",
        xmlns="http://www.w3.org/2000/svg",
        role="img",
        font_family="sans-serif",
        font_size="13",
        aria_label="Expected samples a second over the number of machines",
    )
