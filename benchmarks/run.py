"""Runs the workloads on all contenders, interleaved, and prints a table.

    python -m benchmarks.run [--rounds 15] [--steps 16] [--workload multihot] [--contenders ...]

`make bench` compares the engine with stock's estimator. `make bench-peers` creates the environments
of other systems, and compares the engine with them. Each contender is a process that waits while
another one runs. A round runs a few steps of each in turn. Times are medians over all steps. A
ratio compares a contender with a C++ loop that uses no framework (limit.cc): it is the median, over
the rounds, of the ratio of the two medians in a round, so a slowdown of a whole round has no
effect. Below the table, the loop itself is compared with the limits of the machine. If there is a
GPU, the memory bandwidth of each contender is compared with that of the GPU.

If the contenders do not all fit into memory, they run in groups. Each group has a table, and
includes the loop and the first contender.
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
from benchmarks.workloads import SCALING, WORKLOADS, Workload, batches
from tf2_engine.native import build

HERE = pathlib.Path(__file__).parent
KINDS = ("train", "infer")
MACHINE = ("infer-fresh", "rows", "bandwidth")
"""The names of the C++ loop's other measurements; see limit.cc."""
PROGRAM_BYTES = 600_000_000
"""Memory that a contender may need besides its tables: framework, batches and activations."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A contender that can be selected.

    Attributes:
        module: the module to run, below this package.
        arguments: the module's arguments after the name of the workload.
        environment: the environment with the Python to use, below `--envs`; None for the current
            one.
        kinds: the kinds of steps that it can run.
    """

    module: str
    arguments: tuple[str, ...] = ()
    environment: str | None = None
    kinds: tuple[str, ...] = KINDS

    def command(self, workload: str, environments: pathlib.Path) -> list[str]:
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
    "native-session-on-gpu": Entry("engine_child", ("graph-on-gpu", "1")),
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
"""Maps each kind of step to the times in ms, or other measurements, by round and step."""


class Contender:
    """A process that answers "train N" and "infer N" with the times of N steps, in ms."""

    def __init__(self, command: list[str], kinds: tuple[str, ...] = KINDS) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.times: dict[str, list[float]] = {kind: [] for kind in kinds}

    def give(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def run(self, kind: str, steps: int) -> list[float]:
        """Runs steps, and returns the time of each in ms."""
        self.give(f"{kind} {steps}\n".encode())
        return self.read(steps)

    def read(self, count: int) -> list[float]:
        """Reads an answer of `count` numbers."""
        assert self._process.stdout is not None
        answer = self._process.stdout.readline().split()
        if len(answer) != count:
            status = self._process.wait()
            hint = " (signal 9 usually means out of memory)" if status == -signal.SIGKILL else ""
            raise RuntimeError(
                f"The contender {self._process.args!r} ended with status {status}{hint}."
            )
        return [float(value) for value in answer]

    def end(self) -> None:
        self._process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    # In the first steps of a turn, the processor's caches hold the data of other contenders.
    parser.add_argument("--steps", type=int, default=16, help="steps per round and contender")
    parser.add_argument("--workload", choices=[*WORKLOADS, "all"], default="all")
    parser.add_argument(
        "--contenders",
        nargs="*",
        choices=list(ENTRIES),
        default=["native-session", "tf-session"],
        help="contenders besides the C++ loop; each needs 4 to 5 GB for multihot",
    )
    parser.add_argument(
        "--envs", type=pathlib.Path, default=pathlib.Path(".envs"), help="folder of environments"
    )
    options = parser.parse_args()
    print(f"TensorFlow {tf.version.VERSION}, {options.rounds} rounds of {options.steps} steps.")
    gpus = tf.config.list_physical_devices("GPU")
    of_gpu = _gpu_bandwidth(options.envs) if gpus else None
    for name, workload in WORKLOADS.items():
        if options.workload in (name, "all"):
            for group in groups(workload, options.contenders, _available_bytes()):
                times = measure(workload, group, options)
                report(workload, times)
                if of_gpu is not None:
                    print(bandwidths(workload, times, of_gpu))


def groups(workload: Workload, names: list[str], available: int) -> list[list[str]]:
    """Groups the contenders that fit into memory together. Each group includes the first one.

    Args:
        workload: the workload with the tables that each contender has.
        names: the names of the contenders.
        available: the memory in bytes for all of them and the C++ loop.

    Raises:
        SystemExit: if not even two contenders and the loop fit.
    """
    tables = 4 * workload.tables * workload.rows * workload.dim
    # Tables and slots. While a contender starts, it briefly has its tables twice.
    each = 2 * tables + PROGRAM_BYTES
    together = (available - 3 * tables) // each  # less the loop and a temporary copy
    if together >= len(names):
        return [names]
    if together < 2:
        raise SystemExit(
            f"{workload.name} needs {each / 1e9:.1f} GB for each contender and for the C++ loop; "
            f"{available / 1e9:.1f} GB are free. Free memory, or choose another --workload."
        )
    first, *others = names
    return [
        [first, *others[start : start + together - 1]]
        for start in range(0, len(others), together - 1)
    ]


def _available_bytes() -> int:
    """Returns how much memory programs can allocate without swapping, from /proc/meminfo."""
    lines = pathlib.Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


def measure(workload: Workload, names: list[str], options: argparse.Namespace) -> dict[str, Times]:
    """Measures the C++ loop and each contender. The result begins with the loop."""
    steps = options.steps
    with tempfile.TemporaryDirectory() as folder:
        contenders = {"C++ loop (limit)": _limit(workload, pathlib.Path(folder))}
        for name in names:
            entry = ENTRIES[name]
            command = entry.command(workload.name, options.envs)
            contenders[name] = Contender(command, entry.kinds)
            # One after another, because initializing tables needs twice their memory.
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
    """Describes bounds of the machine, in ms and as ratios to the C++ loop's lookups."""
    bandwidth = _median(loop["bandwidth"])
    least = _bytes(workload, "infer", written=2) / bandwidth / 1e6
    infer = loop["infer"]
    return "\n".join(
        (
            f"  outputs in new memory: infer {_median(loop['infer-fresh']):.2f} ms, "
            f"ratio {_ratio(loop['infer-fresh'], infer):.2f}",
            f"  equally many rows, random order, uncached, no outputs: {_median(loop['rows']):.2f} "
            f"ms, ratio {_ratio(loop['rows'], infer):.2f}",
            f"  distinct rows and outputs at {bandwidth:.1f} GB/s: {least:.2f} ms, ratio "
            f"{least / _median(infer):.2f}",
        )
    )


def bandwidths(workload: Workload, times: dict[str, Times], of_gpu: float) -> str:
    """Describes the memory bandwidth in GB/s that each contender on the GPU reaches."""
    lines = [
        f"  GB/s of a step's rows, slots, activations and gradients (the GPU reaches {of_gpu:.0f})"
    ]
    for name, measured in list(times.items())[1:]:  # without the C++ loop, which is not on the GPU
        reached = {
            kind: _bytes(workload, kind) / _median(measured[kind]) / 1e6 for kind in measured
        }
        lines.append(f"    {name:22s}" + "".join(f"{k:>8s}{v:8.0f}" for k, v in reached.items()))
    return "\n".join(lines)


def _gpu_bandwidth(environments: pathlib.Path) -> float:
    """Measures the GB/s that a GPU reads and writes, in a process that then frees its memory."""
    measuring = Contender(ENTRIES["native-session"].command(SCALING.described(), environments))
    (reached,) = measuring.run("gpu-bandwidth", 1)
    measuring.end()
    return reached


def _bytes(workload: Workload, kind: str, written: int = 1) -> float:
    """Returns the bytes that a step has to move.

    A lookup reads distinct rows once, and writes activations. Training also reads the gradients,
    and reads and writes the distinct rows and their slots.

    Args:
        written: how often an activation moves when it is written: 2 on a CPU, which reads the
            memory first, and 1 on a GPU.
    """
    of_tables = batches(workload)
    distinct = [len(set(batch.ids.tolist())) for table in of_tables for batch in table]
    rows = sum(distinct) / len(of_tables[0])
    activations = workload.batch * workload.tables
    moved = rows + written * activations
    if kind == "train":
        moved += 4 * rows + activations
    return 4.0 * workload.dim * moved


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
