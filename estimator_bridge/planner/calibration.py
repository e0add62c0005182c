"""Measures what bytes and calls cost, with a cluster of two tasks on this machine.

In each step a worker looks up rows on a parameter server and sends gradients back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from estimator_bridge import errors
from estimator_bridge.planner.step_time import MEGABYTE, Coefficients
from tf2_engine.types import Array, Object, Op

_JOBS = ("ps", "worker")
_CASES = (
    *((1, 64, 16), (1, 2048, 32), (1, 8192, 64)),
    *((8, 64, 16), (8, 1024, 32), (8, 4096, 64)),
    *((32, 64, 16), (32, 1024, 32)),
)
"""The cases to measure: the number of tables, the ids looked up in each, and the dimension."""
_ROWS_PER_ID = 4
_WARM, _SECONDS, _MOST_STEPS = 5, 3.0, 300
_START_SECONDS = 240
_LOOPBACK = pathlib.Path("/proc/net/dev")


def write(path: str, coefficients: Coefficients) -> None:
    text = json.dumps(coefficients.as_dict(), indent=2) + "\n"
    try:
        pathlib.Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise errors.CannotWrite(f"--calibration {path}: {error.strerror}.") from error


def read(path: str) -> Coefficients:
    """Reads coefficients that `write` wrote.

    Raises:
        InvalidInput: the file is missing, damaged, or from another version.
    """
    again = "Write it again, with `estimator-bridge plan --calibrate --calibration FILE`."
    try:
        values = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise errors.InvalidInput(f"--calibration {path}: {error}. {again}") from error
    fields = {field.name for field in dataclasses.fields(Coefficients)}
    if not isinstance(values, dict) or values.keys() != fields:
        keys = values.keys() if isinstance(values, dict) else set()
        raise errors.InvalidInput(
            f"--calibration {path} is not a calibration of this version (missing fields: "
            f"{sorted(fields - keys)}; unknown fields: {sorted(keys - fields)}). {again}"
        )
    for name, value in values.items():
        if not _is_valid(name, value):
            raise errors.InvalidInput(f"--calibration {path}: {name} is {value!r}. {again}")
    return Coefficients(**values)


def _is_valid(name: str, value: Object) -> bool:
    if name == "source":
        return isinstance(value, str)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value >= 0


class _Counters(NamedTuple):
    cpu_seconds: float
    bytes: int


def calibrate(tell: Callable[[str], object] = lambda sentence: None) -> Coefficients:
    """Measures a task's memory, and the CPU time and headers of its messages, on this machine.

    This takes about a minute. Bytes are counted on the loopback interface. The count is ignored if
    other programs used the interface heavily.

    Raises:
        InvalidInput: the tasks do not start, or the machine is not Linux.
    """
    if not _LOOPBACK.exists():
        raise errors.InvalidInput(
            "--calibrate needs Linux, because it reads /proc. Leave --calibrate out."
        )
    tell(f"measuring {len(_CASES)} steps with two tasks on this machine")
    with _tasks() as (addresses, processes):
        # The memory of a task before it has anything to do.
        idle = max(_resident(process.pid) for process in processes)
        measured = [_measure(*case, addresses, processes) for case in _CASES]
    import tensorflow as tf

    source = (
        "the costs of messages and a task's memory were measured on this machine, with "
        f"{os.cpu_count()} CPU(s) and TensorFlow {tf.__version__}; the costs of the chief and of "
        "updates come from the project's own measurement"
    )
    fitted = fit(measured, source, Coefficients(task_bytes=float(idle)))
    worst = max(abs(_predicted(fitted, each) / each.cpu_ms - 1) for each in measured)
    tell(
        f"measured: {fitted.cpu_ms_per_megabyte:.3g} ms of CPU per 10^6 bytes, "
        f"{fitted.cpu_ms_per_tensor:.3g} ms and {fitted.bytes_per_tensor:.0f} bytes per tensor, "
        f"{fitted.task_bytes / 1e6:.0f} MB per task; the largest error of the fit is {worst:.0%}"
    )
    return fitted


def _predicted(coefficients: Coefficients, measured: Measured) -> float:
    return (
        coefficients.cpu_ms_per_megabyte * measured.payload / 1e6
        + coefficients.cpu_ms_per_tensor * measured.tensors
        + coefficients.cpu_ms_per_step
    )


def _measure(
    tables: int,
    num_ids: int,
    dim: int,
    addresses: dict[str, list[str]],
    processes: Sequence[subprocess.Popen[bytes]],
) -> Measured:
    import tensorflow.compat.v1 as tf

    drawn = np.random.default_rng(0).integers(0, _ROWS_PER_ID * num_ids, (tables, num_ids))
    with tf.Graph().as_default():
        step = tf.group(*(_updated(number, ids, dim) for number, ids in enumerate(drawn)))
        with tf.Session(f"grpc://{addresses['worker'][0]}") as session:
            session.run(tf.global_variables_initializer())
            run = session.make_callable(step)
            for _ in range(_WARM):
                run()
            before, start, steps = _counters(processes), time.monotonic(), 0
            while steps < _MOST_STEPS and time.monotonic() - start < _SECONDS:
                run()
                steps += 1
            after = _counters(processes)
    rows = sum(len(np.unique(ids)) for ids in drawn)
    payload, tensors = float((rows + drawn.size) * (8 + 4 * dim)), 4 * tables
    sent = (after.bytes - before.bytes) / steps
    # If more was sent than headers can explain, another program is using the interface.
    counted = payload <= sent <= 1.1 * payload + 2000 * tensors + 20_000
    cpu_ms = (after.cpu_seconds - before.cpu_seconds) / steps * 1e3
    return Measured(payload, tensors, sent if counted else None, cpu_ms)


def _updated(number: int, drawn: Array, dim: int) -> Op:
    import tensorflow.compat.v1 as tf

    server, worker = (f"/job:{job}/task:0/device:CPU:0" for job in _JOBS)
    zeros = tf.zeros_initializer()
    with tf.device(server):
        table = tf.get_variable(
            f"table_{number}",
            [_ROWS_PER_ID * len(drawn), dim],
            initializer=zeros,
            use_resource=True,
        )
    with tf.device(worker):
        # If the ids were a constant, TensorFlow would look them up only once, before all steps.
        ids = tf.get_variable(f"ids_{number}", initializer=drawn, use_resource=True).read_value()
        distinct, position = tf.unique(ids)
    with tf.device(server):
        rows = tf.gather(table, distinct)
    with tf.device(worker):
        gradients = tf.gather(rows, position) + 1.0
        # This is a separate op, because the ids of gradients are sent in their own message.
        sent = tf.tile(ids, [1])
    with tf.device(server):
        there, position = tf.unique(sent)
        summed = tf.math.unsorted_segment_sum(gradients, position, tf.size(there))
        return table.scatter_sub(tf.IndexedSlices(summed, there))


@contextlib.contextmanager
def _tasks() -> Iterator[tuple[dict[str, list[str]], list[subprocess.Popen[bytes]]]]:
    addresses = {job: [f"127.0.0.1:{port}"] for job, port in zip(_JOBS, _free_ports(), strict=True)}
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        for job in _JOBS:
            log = stack.enter_context(open(pathlib.Path(folder, f"{job}.log"), "w+b"))
            command = [sys.executable, "-m", __name__, json.dumps(addresses), job]
            process = subprocess.Popen(command, stdout=log, stderr=log)
            processes.append(process)
            stack.callback(process.wait)
            stack.callback(process.kill)
        for job, process in zip(_JOBS, processes, strict=True):
            _wait(addresses[job][0], process, pathlib.Path(folder, f"{job}.log"))
        yield addresses, processes


def _wait(address: str, process: subprocess.Popen[bytes], log: pathlib.Path) -> None:
    host, _, port = address.rpartition(":")
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) == 0:
                return
        time.sleep(0.1)
    last = log.read_text(errors="replace").strip().splitlines()[-1:]
    raise errors.InvalidInput(f"--calibrate: a task does not start: {' '.join(last)}")


def _free_ports() -> list[int]:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in _JOBS]
        return [int(each.getsockname()[1]) for each in held]


def _counters(processes: Sequence[subprocess.Popen[bytes]]) -> _Counters:
    seconds = sum(_cpu_seconds(process.pid) for process in processes) + time.process_time()
    line = next(
        line for line in _LOOPBACK.read_text().splitlines() if line.strip().startswith("lo:")
    )
    return _Counters(seconds, int(line.partition(":")[2].split()[8]))


def _cpu_seconds(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> int:
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def _serve(cluster: str, job: str) -> None:
    import tensorflow as tf

    tf.distribute.Server(json.loads(cluster), job_name=job, task_index=0).join()


class Measured(NamedTuple):
    """One measurement of a step.

    Attributes:
        payload: bytes of ids, rows and gradients.
        tensors: the number of tensors sent from one task to another.
        bytes: bytes on the wire; None if they could not be counted.
        cpu_ms: CPU time of all tasks together.
    """

    payload: float
    tensors: int
    bytes: float | None
    cpu_ms: float


def fit(
    measurements: Sequence[Measured], source: str, base: Coefficients | None = None
) -> Coefficients:
    """Fits coefficients to at least three measurements, by least squares of the relative errors.

    `base` has the coefficients that are not measured. Negative results are set to 0.
    """
    base = base or Coefficients()
    causes = np.array([(m.payload, m.tensors, 1.0) for m in measurements])
    cpu = _least_squares(causes, np.array([m.cpu_ms for m in measurements]))
    fitted = dataclasses.replace(
        base,
        cpu_ms_per_megabyte=cpu[0] * MEGABYTE,
        cpu_ms_per_tensor=cpu[1],
        cpu_ms_per_step=cpu[2],
        source=source,
    )
    counted = [m.bytes for m in measurements if m.bytes is not None]
    if len(counted) < len(measurements):
        return fitted
    sizes = _least_squares(causes, np.array(counted))
    return dataclasses.replace(
        fitted, bytes_per_byte=sizes[0], bytes_per_tensor=sizes[1], bytes_per_step=sizes[2]
    )


def _least_squares(causes: Array, effects: Array) -> list[float]:
    weights = 1 / np.maximum(effects, 1e-9)
    # Without scaling, the constant 1 would vanish in rounding next to millions of bytes.
    sizes = np.maximum(np.abs(causes).max(axis=0), 1e-9)
    scaled = causes / sizes * weights[:, None]
    used = list(range(causes.shape[1]))
    while used:
        solved = np.linalg.lstsq(scaled[:, used], effects * weights, rcond=None)[0]
        if solved.min() >= 0:
            break
        del used[int(solved.argmin())]
    coefficients = [0.0] * causes.shape[1]
    for column, value in zip(used, solved if used else (), strict=True):
        coefficients[column] = float(value / sizes[column])
    return coefficients


if __name__ == "__main__":
    _serve(*sys.argv[1:])
