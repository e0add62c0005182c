"""A seeded fault: how it changes side B, and which causes `verify` may name for it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

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
        kind: what the fault is about, such as "optimizer".
        text: what side B does, in words.
        program: one of `PROGRAMS`.
        causes: the names of the causes that count as correct.
        context: returns a context manager that is open while side B runs.
        change: changes side B's program.
        start: changes the checkpoint from which side B starts, as in `Run`.
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


class Subject(NamedTuple):
    """What a fault is about, the program that shows it, and its correct causes, joined by "|"."""

    kind: str
    program: str
    causes: str


def _fault(text: str, subject: Subject, **more: Any) -> Fault:
    return Fault(subject.kind, text, subject.program, frozenset(subject.causes.split("|")), **more)


def of_engine(text: str, subject: Subject, context: Context) -> Fault:
    return _fault(text, subject, context=context)


def of_program(text: str, subject: Subject, **changed: Any) -> Fault:
    """Creates a fault for which side B runs the program with changed settings."""
    return _fault(text, subject, change=lambda right: dataclasses.replace(right, **changed))


def of_model(text: str, subject: Subject, **changed: Any) -> Fault:
    """Creates a fault for which side B runs the model_fn with changed settings."""

    def change(right: Program) -> Program:
        return dataclasses.replace(right, model=dataclasses.replace(right.model, **changed))

    return _fault(text, subject, change=change)
