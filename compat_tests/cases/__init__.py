"""Which combinations of a table of factors are run: all, or few where levels meet in every way."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest

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

    Args:
        factors: for each factor its levels.
        refused: as in `every`.
    """
    return covering(2, factors, refused)


def covering(size: int, factors: Factors, refused: Collection[Pair] = ()) -> list[Row]:
    """Returns few combinations in which levels of each `size` factors meet in every way.

    Greedy and without chance: a row starts with levels that have not met yet, and each further
    factor takes the level that brings the most such meetings, of those the one used least so far.
    Every factor must have a level that goes with everything, or a row cannot be finished.

    Args:
        size: how many levels must meet; two for pairs.
        factors: for each factor its levels.
        refused: as in `every`.
    """
    refused = frozenset(refused)
    missing = {
        meeting: None
        for meeting in _meetings(size, factors)
        if refused.isdisjoint(itertools.combinations(meeting, 2))
    }
    used: collections.Counter[tuple[str, Any]] = collections.Counter()
    rows = []
    while missing:
        row: Row = dict(next(iter(missing)))
        for factor in [name for name in factors if name not in row]:
            gains = {}
            for level in factors[factor]:
                longer = _ordered({**row, factor: level}, factors)
                if refused.isdisjoint(pairs_of(longer)):
                    new = missing.keys() & set(itertools.combinations(longer.items(), size))
                    gains[level] = len(new), -used[factor, level]
            row[factor] = max(gains, key=gains.__getitem__)
        rows.append(_ordered(row, factors))
        used.update(row.items())
        for meeting in itertools.combinations(rows[-1].items(), size):
            missing.pop(meeting, None)
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


def places(combinations: Iterable[Any], *names: str) -> Iterator[Any]:
    """Yields test parameters: a group of `sharing`, whose tables share an engine, and a place."""
    for group in sharing(combinations, *names):
        for place, one in enumerate(group):
            yield pytest.param(group, place, id=str(one))


def pairs_of(row: Mapping[str, Any]) -> list[Pair]:
    """Returns the pairs of (factor, level) in a combination, in the order of its factors."""
    return list(itertools.combinations(row.items(), 2))


def _meetings(size: int, factors: Factors) -> Iterator[tuple[tuple[str, Any], ...]]:
    for chosen in itertools.combinations(factors, size):
        for levels in itertools.product(*(factors[factor] for factor in chosen)):
            yield tuple(zip(chosen, levels, strict=True))


def _ordered(row: Row, factors: Factors) -> Row:
    return {factor: row[factor] for factor in factors if factor in row}
