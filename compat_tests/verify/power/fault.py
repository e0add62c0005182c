"""A seeded fault: what it does to side B, and what `verify` should call it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

from compat_tests.verify.power.comparing import Context, Run
from compat_tests.verify.power.program import Program
from estimator_bridge.verify.procedure import ComparisonOptions

BATCH_SIZES = (64, 1024, 8192)

PROGRAMS: dict[str, Program] = {
    "users": Program(tables=("users", "flags")),
    "items": Program(tables=("items",)),
    "words": Program(tables=("words",)),
    "places": Program(tables=("places", "tags")),
    "extremes": Program(tables=("rare", "loud", "heavy")),
    "cores": Program(tables=("users", "flags"), cores=2),
    "pipelined": Program(tables=("items",), pipelined=True),
    "evaluated": Program(tables=("items",), evaluates=True),
    "predicted": Program(tables=("users",), predicts=True),
    "exported": Program(tables=("users",), exports=True),
    "long": Program(tables=("users",), steps=300),
}
"""The programs of side A."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault of side B.

    Attributes:
        kind: what it is about.
        text: what it does, in words.
        program: of `PROGRAMS`.
        causes: names, any of which says what is wrong.
        context: entered around side B.
        change: of side B's program.
        start: changes the checkpoint that side B begins with.
    """

    kind: str
    text: str
    program: str
    causes: frozenset[str]
    context: Context = contextlib.nullcontext
    change: Callable[[Program], Program] = lambda program: program
    start: Callable[[str, str], str] = lambda checkpoint, changed: checkpoint
    options: ComparisonOptions = dataclasses.field(default_factory=ComparisonOptions)

    def sides(self, batch_size: int) -> tuple[Run, Run]:
        """Returns both sides, at a batch size."""
        program = dataclasses.replace(PROGRAMS[self.program], batch_size=batch_size)
        return Run(program), Run(self.change(program), context=self.context, start=self.start)


def of_engine(
    kind: str, text: str, program: str, causes: str, context: Context, **more: Any
) -> Fault:
    """Returns a fault of the engine; causes are separated by "|"."""
    return Fault(kind, text, program, frozenset(causes.split("|")), context, **more)


def of_program(kind: str, text: str, program: str, causes: str, **changed: Any) -> Fault:
    """Returns a fault that is another program on side B."""
    return Fault(
        kind,
        text,
        program,
        frozenset(causes.split("|")),
        change=lambda right: dataclasses.replace(right, **changed),
    )


def of_model(kind: str, text: str, program: str, causes: str, **changed: Any) -> Fault:
    """Returns a fault that is another model_fn on side B."""
    names = {*causes.split("|")}
    return Fault(
        kind,
        text,
        program,
        # The first op that differs says more than that the model does.
        frozenset(names | ({"model op"} if "model" in names else set())),
        change=lambda right: dataclasses.replace(
            right, model=dataclasses.replace(right.model, **changed)
        ),
    )
