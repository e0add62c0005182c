"""Compares the steps per second of a small model with stock's, by the median ratio of pairs.

    python -m benchmarks.small [--pairs 10] [--steps 500]

This needs TensorFlow 2.15.1, the last version with stock's estimator. Only one process runs at a
time. The two runs of a pair follow each other, so other load on the machine affects both.
"""

from __future__ import annotations

import argparse
import statistics
import sys

from benchmarks.run import Contender

GOAL = 1
"""The goal for the steps per second, divided by stock's."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=500, help="steps of each run")
    options = parser.parse_args()
    sides = {
        "stock, use_tpu=False": ("stock", "host"),
        "bridge, use_tpu=False": ("bridge", "host"),
        "bridge, use_tpu=True": ("bridge", "engine"),
    }
    contenders = {
        name: Contender([sys.executable, "-m", "benchmarks.small_child", *arguments], ("train",))
        for name, arguments in sides.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for pair in range(options.pairs):
        # The order alternates, so that heat and throttling affect all sides equally.
        order = list(contenders) if pair % 2 else list(reversed(contenders))
        for name in order:
            contenders[name].give(f"train {options.steps}\n".encode())
            (milliseconds,) = contenders[name].read(1)
            seconds[name].append(milliseconds / 1e3)
    for contender in contenders.values():
        contender.end()
    report(seconds, options.steps)


def report(seconds: dict[str, list[float]], steps: int) -> None:
    """Prints medians, and the ratios of pairs with their median."""
    stock = next(iter(seconds.values()))
    print(f"\n{'':24s}{'steps/s':>10s}{'ratio':>8s}   ratios of the pairs")
    for name, times in seconds.items():
        ratios = sorted(theirs / ours for theirs, ours in zip(stock, times, strict=True))
        shown = " ".join(f"{ratio:.2f}" for ratio in ratios)
        rate = steps / statistics.median(times)
        print(f"{name:24s}{rate:10.0f}{statistics.median(ratios):8.3f}   {shown}")
    print(f"The goal is a ratio of at least {GOAL} in both modes.")


if __name__ == "__main__":
    main()
