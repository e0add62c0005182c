"""The order of calls, as a table.

A batch waits at a stage; each call takes one from a stage and puts it at the next. Several
batches may wait at one stage, first in, first out. What waits where is held where the step runs,
never as an attribute of the engine: see `drivers/host/flight.py`.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from tf2_engine import errors


class Stage(enum.Enum):
    """Where a batch waits."""

    ENQUEUED = "enqueued"
    LOOKED_UP = "looked up"


class Move(NamedTuple):
    """What a call does to a batch."""

    takes: Stage | None
    puts: Stage | None


CALLS = {
    "enqueue": Move(None, Stage.ENQUEUED),
    "dequeue": Move(Stage.ENQUEUED, Stage.LOOKED_UP),
    "apply_gradients": Move(Stage.LOOKED_UP, None),
}


def out_of_order(call: str) -> str:
    """Returns the message for a call that found no batch to take."""
    needed = CALLS[call].takes
    due = next(name for name, move in CALLS.items() if move.puts is needed)
    assert needed is not None
    return f"`{call}` is not possible: no batch waits that is {needed.value}; `{due}` comes first."


def refuse(call: str) -> errors.OutOfOrder:
    """Returns the error for a call that found no batch to take."""
    return errors.OutOfOrder(out_of_order(call))
