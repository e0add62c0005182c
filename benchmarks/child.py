"""The loop of a contender: it runs steps on request, and reports how long each took."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.workloads import BATCHES

THREADS = 2

Step = Callable[[int], Any]
"""Runs one step with the batch of this number."""


def serve(
    steps: Mapping[str, Step], others: Mapping[str, Callable[[], float]] | None = None
) -> None:
    """Answers each line "train N" or "infer N" of standard input with the times of N steps, in ms.

    Args:
        others: computes the answer to a line "NAME 1", by name.
    """
    for _ in range(2 * BATCHES):
        for step in steps.values():
            step(0)
    number = 0
    for what, count in commands():
        if others is not None and what in others:
            answer([others[what]()])
            continue
        times = []
        for _ in range(count):
            started = time.perf_counter()
            steps[what](number % BATCHES)
            times.append(1e3 * (time.perf_counter() - started))
            number += 1
        answer(times)


def commands() -> Iterator[tuple[str, int]]:
    """Yields the kind and number of steps that each line of standard input requests."""
    for line in sys.stdin:
        what, count = line.split()
        yield what, int(count)


def resident() -> int:
    """Returns the resident memory of this process in bytes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def answer(times: list[float]) -> None:
    """Prints times in ms as one line."""
    print(*(f"{milliseconds:.4f}" for milliseconds in times), flush=True)
