"""The memory of each task, and the least number of parameter servers that have enough. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from estimator_bridge import errors
from estimator_bridge.planner.coefficients import Coefficients
from estimator_bridge.planner.job import Job
from estimator_bridge.readable_sizes import readable
from tf2_engine.placement import FLOAT_BYTES, Placement

TRAINING_BYTES = 100e6
"""The bytes that a parameter server takes beside its tables while it trains and saves."""

RESTORING_BYTES = 100e6
"""The same while it restores a checkpoint that is written in slices: up to two of them, and a step.

Servers with 268 and 1,074 MB of rows and slots took 59 to 101 MB in eight runs.
"""

MOST_SERVERS = 4096

PlaceOn = Callable[[int], Placement]
"""Returns the placement of a job's tables on a number of parameter servers."""


@dataclasses.dataclass(frozen=True)
class ServerMemory:
    """The bytes of a parameter server.

    Attributes:
        tables: its rows and their slots.
        task: of TensorFlow, and what training or restoring takes, whichever is more.
        unsliced: what restoring takes more if the checkpoint has its tables in one piece: a server
            reads such a piece whole.
    """

    tables: int
    task: float
    unsliced: int

    @property
    def bytes(self) -> float:
        """All but the memory of a checkpoint in one piece."""
        return self.tables + self.task


def server_memory(placement: Placement, server: int, coefficients: Coefficients) -> ServerMemory:
    """Returns the memory of one parameter server."""
    sizes = [placement.tables[name].size for name in placement.tables_of(server)]
    # A piece is one variable of a table: parameters or a slot.
    piece = max((size.rows * size.dim * FLOAT_BYTES for size in sizes), default=0)
    return ServerMemory(placement.server_bytes[server], _beside_tables(coefficients), piece)


def least_servers(job: Job, place: PlaceOn, memory: float, coefficients: Coefficients) -> int:
    """Returns the least number of parameter servers of which each has enough memory.

    Args:
        memory: the bytes of a machine.

    Raises:
        InvalidInput: no number of them is enough.
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
    # No fewer can hold all tables, however even they are spread.
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
