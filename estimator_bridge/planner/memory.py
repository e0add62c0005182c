"""Estimates each task's memory, and the smallest number of parameter servers with enough. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from estimator_bridge import errors
from estimator_bridge.planner.coefficients import Coefficients
from estimator_bridge.planner.job import Job
from estimator_bridge.readable_sizes import readable
from tf2_engine.placement import FLOAT_BYTES, Placement

TRAINING_BYTES = 100e6
"""Memory that a parameter server needs in addition to its tables while it trains and saves."""

RESTORING_BYTES = 100e6
"""The same while it restores a sliced checkpoint: up to two slices, and a step.

Servers with 268 and 1,074 MB of rows and slots took 59 to 101 MB in eight runs.
"""

MOST_SERVERS = 4096

PlaceOn = Callable[[int], Placement]


@dataclasses.dataclass(frozen=True)
class ServerMemory:
    """The bytes of a parameter server.

    Attributes:
        tables: rows and slots.
        task: TensorFlow itself, plus whichever is larger of what training and restoring need.
        unsliced: extra memory for restoring a checkpoint whose tables are each stored in one piece,
            because the server reads a whole piece at once.
    """

    tables: int
    task: float
    unsliced: int

    @property
    def bytes(self) -> float:
        """All memory but the extra for a checkpoint in one piece."""
        return self.tables + self.task


def server_memory(placement: Placement, server: int, coefficients: Coefficients) -> ServerMemory:
    sizes = [placement.tables[name].size for name in placement.tables_of(server)]
    # A piece is one variable of a table: its parameters or a slot.
    piece = max((size.rows * size.dim * FLOAT_BYTES for size in sizes), default=0)
    return ServerMemory(placement.server_bytes[server], _beside_tables(coefficients), piece)


def least_servers(job: Job, place: PlaceOn, memory: float, coefficients: Coefficients) -> int:
    """Finds the smallest number of parameter servers that each have enough memory.

    Args:
        memory: the bytes of a machine.

    Raises:
        InvalidInput: no number of servers is enough.
    """
    room = memory - _beside_tables(coefficients)
    if room <= 0:
        raise errors.InvalidInput(
            f"A parameter server with {readable(int(memory))} has no room for tables: TensorFlow "
            f"and a step take {readable(int(memory - room))}. Give --memory more GB."
        )
    for size in job.sizes:
        if size.row_bytes > room:
            raise errors.InvalidInput(
                f"Table {size.name!r}: a row with its slots takes {readable(size.row_bytes)}, more "
                f"than a parameter server of {readable(int(memory))} has for tables. Give --memory "
                "more GB."
            )
    # Fewer servers cannot hold all tables, however evenly they are spread.
    for servers in range(max(1, -int(-job.bytes // room)), MOST_SERVERS + 1):
        if max(place(servers).server_bytes) <= room:
            return servers
    largest = max(job.sizes, key=lambda size: size.bytes)
    raise errors.InvalidInput(
        f"Even {MOST_SERVERS} parameter servers of {readable(int(memory))} do not hold the tables; "
        f"the largest is {largest.name!r} with {readable(largest.bytes)}. Give --memory more GB."
    )


def _beside_tables(coefficients: Coefficients) -> float:
    return coefficients.task_bytes + max(TRAINING_BYTES, RESTORING_BYTES)
