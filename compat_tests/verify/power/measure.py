"""Runs seeded faults and honest pairs, and collects what `verify` finds."""

from __future__ import annotations

import contextlib
import json
import math
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from compat_tests.verify.power.comparing import Comparer
from compat_tests.verify.power.fault import BATCH_SIZES
from compat_tests.verify.power.faults import FAULTS
from compat_tests.verify.power.honest import Pair
from estimator_bridge.verification.findings import Status
from estimator_bridge.verification.result import Result

T = TypeVar("T", "Judged", "JudgedPair")


class Judged(NamedTuple):
    """What `verify` says about a fault at one batch size.

    Attributes:
        detected: whether verify calls the sides different.
        causes: the names of the causes that verify reports.
        smallest: the smallest error that verify would have seen, in words; "" if unknown.
    """

    name: str
    batch_size: int
    detected: bool
    causes: list[str]
    smallest: str

    @property
    def named(self) -> bool:
        """Whether the fault is detected, and one of the reported causes is right."""
        return self.detected and not FAULTS[self.name].causes.isdisjoint(self.causes)


def judge(comparer: Comparer, name: str, batch_size: int) -> tuple[Judged, Result]:
    fault = FAULTS[name]
    a, b = fault.sides(batch_size)
    result = comparer.compare(f"{fault.program}-{batch_size}", a, b, fault.options)
    detected = result.status == Status.DIFFERENT
    causes = [cause.name for cause in result.causes]
    return Judged(name, batch_size, detected, causes, _smallest(result)), result


def _smallest(result: Result) -> str:
    """Describes the smallest error that was visible in the array that diverged first."""
    first = result.first
    if first is None or not math.isfinite(first.visible):
        return ""
    return f"{first.visible:.0e} of {first.name}"


def judge_all(
    directory: pathlib.Path, names: list[str], sizes: tuple[int, ...] = BATCH_SIZES
) -> Iterator[tuple[Judged, Result]]:
    """Yields the verdict and the result of each fault at each batch size.

    The recordings of a batch size are removed before the next one.
    """
    for size in sizes:
        with contextlib.closing(Comparer(directory / str(size))) as comparer:
            for name in sorted(names, key=lambda one: FAULTS[one].program):
                yield judge(comparer, name, size)


class JudgedPair(NamedTuple):
    """What `verify` says about an honest pair.

    Attributes:
        sides: the names of both sides.
        status: the verdict, such as "equal" or "undecided"; "different" is a false alarm.
        why: the differences that verify reports; "" if the sides are equal.
    """

    title: str
    program: str
    sides: str
    status: str
    why: str

    @property
    def is_alarm(self) -> bool:
        """Whether verify calls the sides different or cannot compare them."""
        return self.status in (Status.DIFFERENT.name.lower(), Status.UNKNOWN.name.lower())


def judge_pair(comparer: Comparer, pair: Pair) -> tuple[JudgedPair, Result | None]:
    """Returns the verdict on an honest pair and the whole result; None if a side failed."""
    sides = f"{pair.a.side} against {pair.name}"
    try:
        result = comparer.compare(pair.key, pair.a, pair.b)
    except Exception as error:  # A failed pair must not discard the results of the others.
        lines = [line for line in str(error).splitlines() if line.strip()]
        why = f"{type(error).__name__}: {' '.join(lines[-1:])}"
        status = Status.UNKNOWN.name.lower()
        return JudgedPair(pair.title, pair.program, sides, status, why), None
    why = "" if result.equal else _why(result)
    status = result.status.name.lower()
    return JudgedPair(pair.title, pair.program, sides, status, why), result


def _why(result: Result) -> str:
    lines = str(result).splitlines()
    first = "" if result.first is None else f"; {result.first.name}: {result.first.first}"
    undecided = "; ".join(result.undecided[:2])
    verdict = next((line for line in lines if "EQUAL" in line or "DECIDED" in line), lines[-1])
    return f"{verdict}{first} {undecided}".strip()


def update(
    path: pathlib.Path, measured: Sequence[T], key: Callable[[T], tuple[object, ...]]
) -> None:
    """Writes results to a JSON file, which keeps its earlier results with different keys."""
    if not measured:
        return
    before = read(path, type(measured[0]))
    by_key = {key(one): one for one in [*before, *measured]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([one._asdict() for one in by_key.values()], indent=1))


def read(path: pathlib.Path, kind: type[T]) -> list[T]:
    """Reads stored results; returns [] if there is no file."""
    if not path.exists():
        return []
    stored = json.loads(path.read_text())
    return [kind(**{name: one[name] for name in kind._fields}) for one in stored]
