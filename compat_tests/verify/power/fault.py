"""A seeded fault: its change of side B, and the causes that `verify` may name."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

from compat_tests.verify.power.comparing import Context, Run
from compat_tests.verify.power.program import Program
from estimator_bridge.verification.procedure import ComparisonOptions

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
"""The programs that side A runs."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault of side B.

    Attributes:
        kind: its subject.
        text: a description of what it does.
        program: one of `PROGRAMS`.
        causes: the names of causes that count as correct.
        context: entered around side B.
        change: changes side B's program.
        start: changes the checkpoint from which side B starts.
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
        program = dataclasses.replace(PROGRAMS[self.program], batch_size=batch_size)
        return Run(program), Run(self.change(program), context=self.context, start=self.start)


def of_engine(
    kind: str, text: str, program: str, causes: str, context: Context, **more: Any
) -> Fault:
    """Creates a fault of the engine; "|" separates causes."""
    return Fault(kind, text, program, frozenset(causes.split("|")), context, **more)


def of_program(kind: str, text: str, program: str, causes: str, **changed: Any) -> Fault:
    """Creates a fault that gives side B another program."""
    return Fault(
        kind,
        text,
        program,
        frozenset(causes.split("|")),
        change=lambda right: dataclasses.replace(right, **changed),
    )


def of_model(kind: str, text: str, program: str, causes: str, **changed: Any) -> Fault:
    """Creates a fault that gives side B another model_fn."""
    names = {*causes.split("|")}
    return Fault(
        kind,
        text,
        program,
        # Naming the first op that differs is more precise than naming the model.
        frozenset(names | ({"model op"} if "model" in names else set())),
        change=lambda right: dataclasses.replace(
            right, model=dataclasses.replace(right.model, **changed)
        ),
    )
