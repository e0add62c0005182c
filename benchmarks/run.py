"""Runs the workloads on everything there is to compare, interleaved, and prints a table.

    python -m benchmarks.run [--rounds 15] [--steps 16] [--workload multihot] [--contenders ...]

`make bench` runs it beside stock's estimator, `make bench-peers` beside other systems, whose
environments it makes. Contenders are processes of their own that wait while another one runs; a
round asks each in turn for a few steps. The figures are medians over all steps. Ratios are to the
C++ loop without a framework (limit.cc): of each round's medians, and the median of these, so that
what slows a whole round down does not count. Below are what holds the loop itself to the machine.

Contenders that do not fit into memory together run in groups, each beside the loop and beside the
first contender, and there is a table for each group.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import signal
import statistics
import struct
import subprocess
import sys
import tempfile

import tensorflow as tf

from benchmarks.child import THREADS
from benchmarks.workloads import WORKLOADS, Workload, batches
from tf2_engine.native import build

HERE = pathlib.Path(__file__).parent
KINDS = ("train", "infer")
MACHINE = ("infer-fresh", "rows", "bandwidth")
"""Other figures of the C++ loop, by name; see limit.cc."""
PROGRAM_BYTES = 600_000_000
"""What a contender may take beside its tables: its framework, batches and activations."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A contender that can be asked for.

    Attributes:
        module: what is run, below this package.
        arguments: after the name of the workload.
        environment: whose Python runs it, below ENVS; None is this one.
        kinds: the steps that it can make.
    """

    module: str
    arguments: tuple[str, ...] = ()
    environment: str | None = None
    kinds: tuple[str, ...] = KINDS

    def command(self, workload: str, environments: pathlib.Path) -> list[str]:
        """Returns the command line."""
        python = sys.executable
        if self.environment:
            python = str(environments / self.environment / "bin" / "python")
        return [python, "-m", f"benchmarks.{self.module}", workload, *self.arguments]


ENTRIES = {
    "native-function": Entry("engine_child", ("function", "1")),
    "native-nest": Entry("engine_child", ("nest", "1")),
    "native-packed": Entry("engine_child", ("packed", "1")),
    "native-packed-on-gpu": Entry("engine_child", ("packed-on-gpu", "1")),
    "keras-fit": Entry("keras_child", ("16",), kinds=("train",)),
    "keras-fit-1": Entry("keras_child", ("1",), kinds=("train",)),
    "native-session": Entry("engine_child", ("graph", "1")),
    "tf-function": Entry("engine_child", ("function", "0")),
    "tf-nest": Entry("engine_child", ("nest", "0")),
    "tf-packed": Entry("engine_child", ("packed", "0")),
    "tf-session": Entry("engine_child", ("graph", "0")),
    "bridge-estimator": Entry("peers.estimator_child", ("bridge",), kinds=("train",)),
    "stock-estimator": Entry("peers.estimator_child", ("stock",), "tf215", ("train",)),
    "recommenders-sparse": Entry("peers.recommenders_child", ("sparse",), "bench-recommenders"),
    "recommenders-ragged": Entry("peers.recommenders_child", ("ragged",), "bench-recommenders"),
    "torch": Entry("peers.torch_child", ("kept",), "bench-torch"),
    "torch-dropped": Entry("peers.torch_child", ("dropped",), "bench-torch", ("infer",)),
    "fbgemm": Entry("peers.fbgemm_child", (), "bench-torch"),
    "torch-gpu": Entry("peers.torch_child", ("kept", "cuda"), "bench-torch-gpu"),
    "fbgemm-gpu": Entry("peers.fbgemm_child", ("cuda",), "bench-torch-gpu"),
}


Times = dict[str, list[list[float]]]
"""For each kind of step the times in ms, or other figures, of the steps of each round."""


class Contender:
    """A process that answers "train N" and "infer N" with the milliseconds of N steps."""

    def __init__(self, command: list[str], kinds: tuple[str, ...] = KINDS) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.times: dict[str, list[float]] = {kind: [] for kind in kinds}

    def give(self, data: bytes) -> None:
        """Writes to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def run(self, kind: str, steps: int) -> list[float]:
        """Runs steps; returns the time of each in ms."""
        self.give(f"{kind} {steps}\n".encode())
        return self.read(steps)

    def read(self, count: int) -> list[float]:
        """Returns its answer, of so many numbers."""
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().split()
        if len(answer) != count:
            status = self._process.wait()
            hint = " (signal 9 is mostly too little memory)" if status == -signal.SIGKILL else ""
            raise RuntimeError(
                f"The contender {self._process.args!r} ended with status {status}{hint}."
            )
        return [float(value) for value in answer]

    def end(self) -> None:
        """Lets the process end."""
        self._process.communicate()


def main() -> None:
    """Runs what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    # The first steps of a turn find what others left in the caches of the processor.
    parser.add_argument("--steps", type=int, default=16, help="steps per round and contender")
    parser.add_argument("--workload", choices=[*WORKLOADS, "all"], default="all")
    parser.add_argument(
        "--contenders",
        nargs="*",
        choices=list(ENTRIES),
        default=["native-session", "tf-session"],
        help="besides the C++ loop; each one takes 4 to 5 GB for multihot",
    )
    parser.add_argument(
        "--envs", type=pathlib.Path, default=pathlib.Path(".envs"), help="where environments are"
    )
    options = parser.parse_args()
    print(f"TensorFlow {tf.version.VERSION}, {options.rounds} rounds of {options.steps} steps.")
    for name, workload in WORKLOADS.items():
        if options.workload in (name, "all"):
            for group in groups(workload, options.contenders, _available_bytes()):
                report(workload, measure(workload, group, options))


def groups(workload: Workload, names: list[str], available: int) -> list[list[str]]:
    """Returns which contenders run together: as many as fit, the first of all in each group.

    Args:
        workload: whose tables each contender has.
        names: of the contenders.
        available: bytes of memory for all of them and the C++ loop.

    Raises:
        SystemExit: if not even two contenders and the loop fit.
    """
    tables = 4 * workload.tables * workload.rows * workload.dim
    # With slots; and the one that starts has the values of its tables twice for a moment.
    each = 2 * tables + PROGRAM_BYTES
    together = (available - 3 * tables) // each  # beside the loop's
    if together >= len(names):
        return [names]
    if together < 2:
        raise SystemExit(
            f"{workload.name} takes {each / 1e9:.1f} GB per contender, and the C++ loop as much; "
            f"{available / 1e9:.1f} GB are free. Free memory, or choose another --workload."
        )
    first, *others = names
    return [
        [first, *others[start : start + together - 1]]
        for start in range(0, len(others), together - 1)
    ]


def _available_bytes() -> int:
    """Returns how much memory programs can take without swapping, by /proc/meminfo."""
    lines = pathlib.Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


def measure(workload: Workload, names: list[str], options: argparse.Namespace) -> dict[str, Times]:
    """Returns the times of the C++ loop and of each contender, the loop first."""
    steps = options.steps
    with tempfile.TemporaryDirectory() as folder:
        contenders = {"C++ loop (limit)": _limit(workload, pathlib.Path(folder))}
        for name in names:
            entry = ENTRIES[name]
            command = entry.command(workload.name, options.envs)
            contenders[name] = Contender(command, entry.kinds)
            # One after another: to initialise tables takes twice their memory.
            for kind in entry.kinds:
                contenders[name].run(kind, steps)
        for _ in range(options.rounds):
            for kind in (*KINDS, *MACHINE):
                for contender in contenders.values():
                    if kind in contender.times:
                        contender.times[kind] += contender.run(kind, steps)
        for contender in contenders.values():
            contender.end()
        return {
            name: {kind: _rounds(times, steps) for kind, times in contender.times.items()}
            for name, contender in contenders.items()
        }


def report(workload: Workload, times: dict[str, Times]) -> None:
    """Prints medians, ratios, and the bandwidth and random-row time of the machine."""
    loop = next(iter(times.values()))
    print(f"\n{workload.name:24s}{'train, ms':>12s}{'ratio':>8s}{'infer, ms':>12s}{'ratio':>8s}")
    for contender, measured in times.items():
        line = f"{contender:24s}"
        for kind in KINDS:
            if kind not in measured:
                line += f"{'-':>12s}{'-':>8s}"
                continue
            ratio = _ratio(measured[kind], loop[kind])
            line += f"{_median(measured[kind]):12.2f}{ratio:8.2f}"
        print(line)
    if all(kind in loop for kind in MACHINE):
        print(_machine(workload, loop))


def _machine(workload: Workload, loop: Times) -> str:
    """Returns lines on the C++ loop's lookups beside bounds of the machine, in ratios to them."""
    bandwidth = _median(loop["bandwidth"])
    least = _bytes(workload) / bandwidth / 1e6
    infer = loop["infer"]
    return "\n".join(
        (
            f"  outputs in new memory: infer {_median(loop['infer-fresh']):.2f} ms, "
            f"ratio {_ratio(loop['infer-fresh'], infer):.2f}",
            f"  as many rows in no order, none in a cache, no outputs: {_median(loop['rows']):.2f} "
            f"ms, ratio {_ratio(loop['rows'], infer):.2f}",
            f"  distinct rows and outputs at {bandwidth:.1f} GB/s: {least:.2f} ms, ratio "
            f"{least / _median(infer):.2f}",
        )
    )


def _bytes(workload: Workload) -> float:
    """Returns the bytes that a lookup moves in each batch: distinct rows, and outputs twice."""
    of_tables = batches(workload)
    distinct = [len(set(batch.ids.tolist())) for table in of_tables for batch in table]
    rows = sum(distinct) / len(of_tables[0])
    return 4.0 * workload.dim * (rows + 2 * workload.batch * workload.tables)


def _rounds(times: list[float], steps: int) -> list[list[float]]:
    return [times[start : start + steps] for start in range(0, len(times), steps)]


def _median(rounds: list[list[float]]) -> float:
    return statistics.median(value for steps in rounds for value in steps)


def _ratio(rounds: list[list[float]], others: list[list[float]]) -> float:
    pairs = zip(rounds, others, strict=True)
    return statistics.median(
        statistics.median(steps) / statistics.median(other) for steps, other in pairs
    )


def _limit(workload: Workload, folder: pathlib.Path) -> Contender:
    program = folder / "limit"
    flags = ["-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-pthread"]
    subprocess.run([*build.compiler(), *flags, str(HERE / "limit.cc"), "-o", program], check=True)
    contender = Contender([str(program), str(THREADS)], (*KINDS, *MACHINE))
    of_tables = batches(workload)
    contender.give(
        struct.pack("=4q", len(of_tables), workload.rows, workload.dim, len(of_tables[0]))
    )
    for table in of_tables:
        for batch in table:
            contender.give(struct.pack("=2q", len(batch.splits) - 1, len(batch.ids)))
            contender.give(batch.splits.tobytes() + batch.ids.tobytes())
    return contender


if __name__ == "__main__":
    main()
