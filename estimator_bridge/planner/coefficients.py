"""The coefficients of the model of a step, and their fit to measurements."""

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
    loaded machine with two cores and TensorFlow 2.15.1, and predict bytes within 2.6 %. Node counts
    were fitted to three graphs of the driver. Update costs come from docs/benchmarks.md.

    Attributes:
        bytes_per_byte: bytes on the wire for each byte of ids, rows and gradients.
        bytes_per_tensor: header bytes of a tensor that one task sends to another.
        bytes_per_step: bytes that every step sends in addition.
        cpu_ms_per_megabyte: CPU time for 10^6 bytes of payload, at sender and receiver together.
        cpu_ms_per_tensor, cpu_ms_per_step: CPU time of all tasks together, in addition.
        client_ms, client_ms_per_task: the chief's time for a step, and for each core and server.
        nodes_per_core, nodes_per_table, nodes_per_part: graph nodes for each core (not counting the
            model's), table, and part of a table.
        update_ns_per_value: nanoseconds of one CPU for each float32 of an updated row and its
            slots, on a parameter server, which does not use the native ops.
        update_ns_alone: the same, if a single process does all the work.
        input_bytes_per_id: bytes that a chief that reads the input sends to a worker for each id.
        task_bytes: memory of an idle task that has loaded TensorFlow.
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
        return dataclasses.asdict(self)


class Measured(NamedTuple):
    """One measurement of a step.

    Attributes:
        payload: bytes of ids, rows and gradients.
        tensors: the number of tensors sent from one task to another.
        bytes: bytes on the wire; None if they could not be counted.
        cpu_ms: of all tasks together.
    """

    payload: float
    tensors: int
    bytes: float | None
    cpu_ms: float


def fit(
    measurements: Sequence[Measured], source: str, base: Coefficients | None = None
) -> Coefficients:
    """Fits coefficients to at least three measurements, by least squares of the relative errors.

    `base` has the coefficients that are not measured. Negative results become 0.
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
