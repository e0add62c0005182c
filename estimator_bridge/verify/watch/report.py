"""Reports the result of watching a job, as a table and as values for JSON."""

from __future__ import annotations

import dataclasses

from estimator_bridge.verify.record.recording import SideDescription
from estimator_bridge.verify.watch.invariants import INVARIANTS, Violation
from tf2_engine import plain_text
from tf2_engine.types import Object


@dataclasses.dataclass
class Kept:
    """A violation as it was first seen, and in how many steps."""

    first: Violation
    steps: int


@dataclasses.dataclass
class WatchReport:
    """The findings about a watched job.

    Attributes:
        settings: of the job; None if it failed before its training.
        steps: how many were checked.
        violations: each invariant of each array once, in order.
        notes: what could not be checked, and why.
        failure: why the program failed, or None.
    """

    settings: SideDescription | None
    steps: int
    violations: list[Kept]
    notes: list[str]
    failure: str | None = None

    @property
    def holds(self) -> bool:
        return bool(self.steps) and not self.violations and self.failure is None

    def __str__(self) -> str:
        lines = []
        if self.settings is not None:
            mode = f"use_tpu={self.settings['use_tpu']}: {self.settings['where']}"
            lines.append(
                f"{self.settings['engine']}, TensorFlow {self.settings['tensorflow']}, {mode}"
            )
        if self.violations:
            lines.append(f"VIOLATED: {self._summary()} in {self.steps} steps.")
            lines.extend(f"  {_line(kept, self.steps)}" for kept in self.violations)
        else:
            lines.append(f"Every invariant that was checked holds in {self.steps} steps.")
        lines.extend(f"Note: {note}" for note in self.notes)
        if self.failure is not None:
            first, *rest = plain_text.plain(self.failure).split("\n")
            lines += [f"The program failed: {first}", *rest]
        return plain_text.Lines(*lines)

    def as_dict(self) -> dict[str, Object]:
        return {
            "holds": self.holds,
            "side": self.settings,
            "steps": self.steps,
            "violations": [
                {**kept.first._asdict(), "steps": kept.steps} for kept in self.violations
            ],
            "invariants": INVARIANTS,
            "notes": self.notes,
            "failure": self.failure,
        }

    def _summary(self) -> str:
        broken = dict.fromkeys(kept.first.invariant for kept in self.violations)
        return "; ".join(f"{name} ({INVARIANTS[name]})" for name in broken)


def _line(kept: Kept, steps: int) -> str:
    first = kept.first
    where = f"{first.where}, from step {first.step} on" if kept.steps > 1 else first.where
    count = f"in {kept.steps} of {steps} steps" if kept.steps > 1 else f"in step {first.step}"
    return f"{first.invariant}: {where}, {count}: {first.text}"
