"""Compares the time from the start of a process to its first steps with stock's, in pairs.

    python -m benchmarks.start_up [--pairs 10]

The program is `benchmarks.small_child`, on TensorFlow 2.15.1, the last version with stock's
estimator. The first pair is not counted: it fills the file cache, and compiles the native ops if
necessary.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

GOAL = 1.2
"""The goal for the ratio to stock's time."""
SIDES = {
    "stock, use_tpu=False": ("stock", "host"),
    "bridge, use_tpu=False": ("bridge", "host"),
    "bridge, use_tpu=True": ("bridge", "engine"),
}


def main() -> None:
    """Measures the pairs, and prints medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in SIDES}
    for pair in range(1 + options.pairs):
        for name in SIDES if pair % 2 else reversed(SIDES):
            took = to_first_step(*SIDES[name])
            if pair:
                seconds[name].append(took)
    stock = seconds["stock, use_tpu=False"]
    for name, of_side in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(of_side, stock, strict=True))
        print(f"{name:24s}{statistics.median(of_side):8.2f} s{ratio:8.2f} (goal: {GOAL})")


def to_first_step(*arguments: str) -> float:
    """Returns the seconds from the start of a process to the end of its second session call.

    A session call runs one step, or with use_tpu=True the steps of a training loop.
    """
    command = [sys.executable, "-m", "benchmarks.small_child", *arguments, "1"]
    start = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        # The answer comes after the session call that follows the warm-up call.
        process.stdin.write(b"train 1\n")
        process.stdin.flush()
        line = process.stdout.readline()
        took = time.perf_counter() - start
        process.stdin.close()
        if not line:
            raise RuntimeError(f"The program {command!r} ended with status {process.wait()}.")
    return took


if __name__ == "__main__":
    main()
