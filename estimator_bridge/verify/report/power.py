"""Words the power of a comparison: the differences that it would have shown."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator

from estimator_bridge.verify.findings import DENSE, GRADIENT, SLOT, TABLE, Findings, Series, some

_SHOWN = 4
_VISIBLE = operator.attrgetter("visible")


def power_lines(findings: Findings) -> Iterator[str]:
    """Yields the smallest error that would have been seen: in tables, then in the rest."""
    yield from table_lines(findings)
    yield from other_lines(findings)


def table_lines(findings: Findings) -> Iterator[str]:
    """Yields the smallest error that would have been seen in tables, the least certain first.

    Tables of which the same can be said share a line.
    """
    moved = [each for each in findings.series if each.role == TABLE and each.moved]
    alike: dict[str, list[str]] = {}
    for series in sorted(moved, key=_VISIBLE, reverse=True):
        alike.setdefault(f"{_visible(series)}{_rows(series)}", []).append(str(series.table))
    for sentence, tables in alike.items():
        yield f"table{'s' * (len(tables) > 1)} {some(tables, _SHOWN)}: {sentence}."


def other_lines(findings: Findings) -> Iterator[str]:
    """Yields the smallest error that would have been seen in all other arrays.

    The least certain array of each kind counts. Undecided arrays follow.
    """
    for stage, what in ((SLOT, "slot"), (DENSE, "variable"), (GRADIENT, "gradient")):
        known = [s for s in findings.series if s.stage == stage and s.moved and s.decided]
        if known:
            worst = max((s for s in known if not s.is_noise), key=_VISIBLE, default=known[0])
            others = "" if len(known) == 1 else f" in any of {len(known)} {what}s"
            yield f"{_visible(worst)}{others}; least in {worst.name}."
    noise = [series.name for series in findings.series if series.is_noise]
    if noise:
        names = some(noise, _SHOWN)
        yield f"nothing but rounding, as it is on side A too: the gradients of {names}."
    for line in findings.undecided[:_SHOWN]:
        yield f"UNDECIDED: {line}."
    if findings.undecided:
        rest = len(findings.undecided) - _SHOWN
        more = f" {rest} more are undecided." if rest > 0 else ""
        yield f"Compare more steps (--steps), or with a larger rate or smaller batches.{more}"


def factor(visible: float) -> str:
    """Formats a factor, such as "2e-05" or "3 %"."""
    if not math.isfinite(visible):
        return "any factor"
    return f"{visible:.1%}".replace("%", " %") if visible >= 1e-3 else f"{visible:.0e}"


def _visible(series: Series) -> str:
    if not math.isfinite(series.visible):
        return "nothing can be told"
    return f"a movement wrong by {factor(series.visible)} would be seen"


def _rows(series: Series) -> str:
    if not series.rows_moved:
        return ""
    if series.rows_decided == series.rows_moved:
        return f", and one wrong by a tenth in each of the {series.rows_moved} rows that move"
    return (
        f"; one wrong by a tenth in {series.rows_decided} of the {series.rows_moved} rows that "
        f"move, and not in row {series.undecided_row}, which moves by a few roundings"
    )
