"""What a contender does: it makes steps when it is told, and says how long each took."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks.workloads import BATCHES

THREADS = 2

Step = Callable[[int], Any]
"""Makes one step with the batch of that number."""


def serve(steps: Mapping[str, Step], memory: Callable[[], float] | None = None) -> None:
    """Answers every line "train N" or "infer N" of standard input with N times in ms.

    Args:
        memory: what "memory 1" is answered with.
    """
    for _ in range(2 * BATCHES):
        for step in steps.values():
            step(0)
    number = 0
    for what, count in commands():
        if memory is not None and what == "memory":
            answer([memory()])
            continue
        times = []
        for _ in range(count):
            started = time.perf_counter()
            steps[what](number % BATCHES)
            times.append(1e3 * (time.perf_counter() - started))
            number += 1
        answer(times)


def commands() -> Iterator[tuple[str, int]]:
    """Yields what is asked for, and how many steps of it."""
    for line in sys.stdin:
        what, count = line.split()
        yield what, int(count)


def resident() -> int:
    """Returns the bytes of this process that are in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def answer(times: list[float]) -> None:
    """Says how long steps took, in ms."""
    print(*(f"{milliseconds:.4f}" for milliseconds in times), flush=True)
