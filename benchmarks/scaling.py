"""Measures how the time and memory of a step grow with rows, batch, tables and threads.

    python -m benchmarks.scaling [--axis rows] [--contenders native-session ...] [--out DIR]

Along each axis, one size varies. The sizes run interleaved, each in its own process. The ids do not
depend on the number of rows. Prints the medians and minima of the times, and the memory without
TensorFlow's own, divided by the size of tables and slots. Writes a chart per axis.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import statistics
from collections.abc import Sequence

import tensorflow as tf

from benchmarks.child import THREADS
from benchmarks.plot import Points, chart
from benchmarks.run import ENTRIES, KINDS, Contender
from benchmarks.workloads import SCALING

AXES = {
    "rows": (100_000, 1_000_000, 10_000_000),
    "batch": (512, 2048, 8192, 32768),
    "tables": (1, 4, 16, 64),
    "threads": (1, 2, 4, 8),
}
"""The sizes along each axis. All other sizes are those of `SCALING`, with THREADS threads."""

ENGINES = [name for name, entry in ENTRIES.items() if entry.module == "engine_child"]


@dataclasses.dataclass(frozen=True)
class Measured:
    """The measurements for one size of an axis.

    Attributes:
        times: maps each kind of step to times in ms.
        memory: resident memory without TensorFlow's own, divided by the size of tables and slots.
    """

    size: int
    times: dict[str, list[float]]
    memory: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=4, help="steps per round and size")
    parser.add_argument("--axis", nargs="*", choices=list(AXES), default=list(AXES))
    parser.add_argument("--sizes", nargs="*", type=int, help="sizes instead of the default")
    parser.add_argument("--contenders", nargs="*", choices=ENGINES, default=["native-session"])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/bench-scaling"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    print(f"TensorFlow {tf.version.VERSION}, {options.rounds} rounds of {options.steps} steps.")
    print(f"{SCALING}, {THREADS} threads, except along each axis.")
    for contender in options.contenders:
        for axis in options.axis:
            sizes = options.sizes or AXES[axis]
            measured = measure(contender, axis, sizes, options.rounds, options.steps)
            report(contender, axis, measured)
            lines: dict[str, Points] = {
                kind: [(one.size, statistics.median(one.times[kind])) for one in measured]
                for kind in KINDS
            }
            path = options.out / f"{contender}-{axis}.svg"
            path.write_text(chart(f"{contender}: {axis}", axis, "ms", lines), encoding="utf-8")
            print(path)


def measure(
    contender: str, axis: str, sizes: Sequence[int], rounds: int, steps: int
) -> list[Measured]:
    """Runs all sizes of an axis, interleaved."""
    running = {}
    for size in sizes:
        workload, threads = SCALING, THREADS
        if axis == "threads":
            threads = size
        else:
            workload = dataclasses.replace(workload, **{axis: size})
        command = ENTRIES[contender].command(workload.described(), pathlib.Path())
        running[size] = Contender([*command, str(threads)])
        # One after another, because initializing tables needs twice their memory.
        running[size].run("train", 1)
    for _ in range(rounds):
        for kind in KINDS:
            for one in running.values():
                one.times[kind] += one.run(kind, steps)
    measured = [Measured(size, one.times, one.run("memory", 1)[0]) for size, one in running.items()]
    for one in running.values():
        one.end()
    return measured


def report(contender: str, axis: str, measured: Sequence[Measured]) -> None:
    """Prints medians and minima, and ratios of medians to that of the first size."""
    heads = "".join(f"{kind + ', ms':>12s}{'least':>9s}{'ratio':>8s}" for kind in KINDS)
    print(f"\n{contender + ', ' + axis:24s}{heads}{'memory':>10s}")
    for one in measured:
        line = f"{one.size:>24,d}"
        for kind in KINDS:
            median = statistics.median(one.times[kind])
            first = statistics.median(measured[0].times[kind])
            line += f"{median:12.2f}{min(one.times[kind]):9.2f}{median / first:8.2f}"
        print(f"{line}{one.memory:10.2f}")


if __name__ == "__main__":
    main()
