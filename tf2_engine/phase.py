"""The order of calls, as a table.

A batch waits at a stage; each call takes one from a stage and puts it at the next. Several
batches may wait at one stage, first in, first out. The waiting batches are held where the step
runs, never in an attribute of the engine: see `backends/host/batch_queue.py`.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from tf2_engine import errors


class Stage(enum.Enum):
    """The places where a batch may wait."""

    ENQUEUED = "enqueued"
    LOOKED_UP = "looked up"


class Transition(NamedTuple):
    """The stage from which a call takes a batch, and the stage at which it leaves it."""

    takes: Stage | None
    puts: Stage | None


CALLS = {
    "enqueue": Transition(None, Stage.ENQUEUED),
    "dequeue": Transition(Stage.ENQUEUED, Stage.LOOKED_UP),
    "apply_gradients": Transition(Stage.LOOKED_UP, None),
}


def out_of_order(call: str) -> errors.OutOfOrder:
    """Returns the error for a call that finds no batch to take."""
    needed = CALLS[call].takes
    previous = next(name for name, transition in CALLS.items() if transition.puts is needed)
    assert needed is not None
    return errors.OutOfOrder(
        f"`{call}` is not possible: no batch waits that is {needed.value}; `{previous}` comes "
        "first."
    )
