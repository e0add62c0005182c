"""Which combinations of a table of factors are run: all of them, or few that hold every pair."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

Factors = Mapping[str, Sequence[Any]]
Row = dict[str, Any]
Pair = tuple[tuple[str, Any], tuple[str, Any]]


def every(factors: Factors, refused: Collection[Pair] = ()) -> list[Row]:
    """Returns every combination without a refused pair, the last factor changing fastest.

    Args:
        factors: for each factor its levels.
        refused: pairs of (factor, level), in the order of the factors, that cannot go together.
    """
    rows = (
        dict(zip(factors, levels, strict=True)) for levels in itertools.product(*factors.values())
    )
    refused = frozenset(refused)
    return [row for row in rows if refused.isdisjoint(pairs_of(row))]


def pairwise(factors: Factors, refused: Collection[Pair] = ()) -> list[Row]:
    """Returns few combinations in which every pair of levels occurs that is not refused.

    Greedy and without chance: a row starts with a pair that is still missing, and each further
    factor takes the level that brings the most missing pairs, of those the one used least so far.
    Every factor must have a level that goes with everything, or a row cannot be finished.

    Args:
        factors: for each factor its levels.
        refused: as in `every`.
    """
    refused = frozenset(refused)
    missing = dict.fromkeys(pair for pair in _pairs(factors) if pair not in refused)
    used: collections.Counter[tuple[str, Any]] = collections.Counter()
    rows = []
    while missing:
        row: Row = dict(next(iter(missing)))
        for factor in [name for name in factors if name not in row]:
            gains = {}
            for level in factors[factor]:
                pairs = set(pairs_of(_ordered({**row, factor: level}, factors)))
                if not pairs & refused:
                    gains[level] = len(missing.keys() & pairs), -used[factor, level]
            row[factor] = max(gains, key=gains.__getitem__)
        rows.append(_ordered(row, factors))
        used.update(row.items())
        for pair in pairs_of(rows[-1]):
            missing.pop(pair, None)
    return rows


def in_turn(
    rows: Iterable[Row], factor: str, levels: Callable[[Row], Sequence[Any]]
) -> Iterator[Row]:
    """Yields the rows with one more factor, or another one in its place, whose levels take turns.

    Each row gets the level that met the other levels of the row least often so far.

    Args:
        levels: returns the levels that are possible in a row.
    """
    met: collections.Counter[Any] = collections.Counter()
    for row in rows:
        times = {level: sum(met[level, other] for other in row.items()) for level in levels(row)}
        level = min(times, key=times.__getitem__)
        met.update((level, other) for other in row.items())
        yield {**row, factor: level}


def sharing(combinations: Iterable[Any], *names: str) -> list[tuple[Any, ...]]:
    """Returns the combinations in groups with the same values of these attributes, in order."""
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for one in combinations:
        groups.setdefault(tuple(getattr(one, name) for name in names), []).append(one)
    return [tuple(groups[key]) for key in sorted(groups)]


def pairs_of(row: Mapping[str, Any]) -> list[Pair]:
    """Returns the pairs of (factor, level) in a combination, in the order of its factors."""
    return list(itertools.combinations(row.items(), 2))


def _pairs(factors: Factors) -> Iterator[Pair]:
    for (one, levels), (other, other_levels) in itertools.combinations(factors.items(), 2):
        for level, other_level in itertools.product(levels, other_levels):
            yield (one, level), (other, other_level)


def _ordered(row: Row, factors: Factors) -> Row:
    return {factor: row[factor] for factor in factors if factor in row}
