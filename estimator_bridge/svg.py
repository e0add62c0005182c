"""Formats elements of SVG drawings as strings."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from tf2_engine import plain_text

Points = Sequence[tuple[float, float]]


def element(tag: str, content: str = "", **attributes: str | float) -> str:
    """Puts elements or escaped text into a new element. `_` in attribute names becomes `-`."""
    opening = tag
    for name, value in attributes.items():
        written = f"{value:.1f}" if isinstance(value, float) else html.escape(str(value))
        opening += f' {name.replace("_", "-")}="{written}"'
    return f"<{opening}>{content}</{tag}>" if content else f"<{opening}/>"


def text(x: float, y: float, content: str, anchor: str = "middle", **attributes: str) -> str:
    return element(
        "text", html.escape(plain_text.plain(content)), x=x, y=y, text_anchor=anchor, **attributes
    )


def line(x1: float, y1: float, x2: float, y2: float, stroke: str, **attributes: str) -> str:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=stroke, **attributes)


def curve(points: Points, colour: str, radius: float, content: str = "", **attributes: str) -> str:
    dots = [element("circle", cx=x, cy=y, r=radius, fill=colour) for x, y in points]
    stroke = {"fill": "none", "stroke": colour, "stroke_width": "2", **attributes}
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return element("polyline", content, points=path, **stroke) + "".join(dots)


def drawing(parts: Iterable[str], view_box: str, **attributes: str | float) -> str:
    return element("svg", "\n".join(parts), viewBox=view_box, **attributes)
