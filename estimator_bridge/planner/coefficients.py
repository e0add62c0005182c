"""The coefficients of the model of a step, and their fit to measurements. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tf2_engine.types import Array, Object

MEGABYTE = 1e6


@dataclasses.dataclass(frozen=True)
class Coefficients:
    """The costs of a byte, a tensor and a task.

    The defaults were fitted to ten clusters of 1 to 4 workers and 1 to 4 parameter servers on one
    loaded machine of two cores, with TensorFlow 2.15.1; bytes were met within 2.6 %. Nodes were
    fitted to three graphs of the driver. Updates are from the figures of docs/benchmarks.md:
    that of parameter servers is of TensorFlow's ops, which take longer than the native ones, that
    of one process of the native ones. `--calibrate` measures a machine's own.

    Attributes:
        bytes_per_byte: bytes on the wire for each byte of ids, rows and gradients.
        bytes_per_tensor: headers of a tensor that goes from task to task.
        bytes_per_step: what a step takes whatever is in it.
        cpu_ms_per_megabyte: milliseconds of CPU of both ends together, for 10^6 bytes of payload.
        cpu_ms_per_tensor: the same for a tensor.
        cpu_ms_per_step: of all tasks together.
        client_ms: of the chief, which drives a step.
        client_ms_per_task: the same for each core and each parameter server.
        nodes_per_core: of the graph, without the model.
        nodes_per_table: for each core and table.
        nodes_per_part: for each core and part of a table.
        update_ns_per_value: nanoseconds of one CPU for each float32 of a row that is updated,
            parameters and slots, on a parameter server.
        update_ns_alone: the same where one process does all.
        input_bytes_per_id: what a chief that reads the input for all sends a worker for each id:
            the index and the value of a SparseTensor. Other features and labels are not counted.
        task_bytes: the memory of a task that has TensorFlow loaded and nothing to do.
    """

    bytes_per_byte: float = 1.0
    bytes_per_tensor: float = 652.0
    bytes_per_step: float = 2800.0
    cpu_ms_per_megabyte: float = 4.84
    cpu_ms_per_tensor: float = 0.375
    cpu_ms_per_step: float = 8.2
    client_ms: float = 1.8
    client_ms_per_task: float = 0.4
    nodes_per_core: int = 100
    nodes_per_table: int = 177
    nodes_per_part: int = 24
    update_ns_per_value: float = 6.5
    update_ns_alone: float = 2.4
    input_bytes_per_id: float = 24.0
    task_bytes: float = 400e6
    source: str = "of the project's own measurement; --calibrate measures this machine's"

    def as_dict(self) -> dict[str, Object]:
        """Returns the coefficients by name."""
        return dataclasses.asdict(self)


class Measured(NamedTuple):
    """One measurement of a step: the messages that were sent, and their cost.

    Attributes:
        payload: bytes of ids, rows and gradients.
        tensors: those that went from task to task.
        bytes: that went over the wire; None where it could not be counted.
        cpu_ms: of all tasks together.
    """

    payload: float
    tensors: int
    bytes: float | None
    cpu_ms: float


def fit(
    measurements: Sequence[Measured], source: str, base: Coefficients | None = None
) -> Coefficients:
    """Returns the coefficients that meet measurements best (least squares of relative errors).

    What a measurement does not tell is as in `base`. A coefficient that would be negative, as noise
    can make it, is 0. There must be at least three different measurements.
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
    """Returns a coefficient for each column of causes, none of them negative."""
    weights = 1 / np.maximum(effects, 1e-9)
    # Beside millions of bytes the constant, 1, would be lost in rounding.
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
