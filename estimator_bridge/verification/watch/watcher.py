"""Watches a job: checks the steps that the job has recorded, and reports violations."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Iterator

from estimator_bridge import errors
from estimator_bridge.recording.files import (
    VARIABLES,
    RecordedStep,
    Recording,
    SideDescription,
    StepReader,
    TableDescription,
    Values,
)
from estimator_bridge.verification.compare.arithmetic import lookups
from estimator_bridge.verification.compare.paired_steps import (
    IdsOfFeatures,
    ids_of_step,
    joined_step,
    unused_gradients,
)
from estimator_bridge.verification.sides import B, Record, RecordingRequest
from estimator_bridge.verification.watch import invariants
from estimator_bridge.verification.watch.invariants import INVARIANTS, UPDATE, Interval, Violation
from tf2_engine import plain_text
from tf2_engine.types import Object


class WatchedJob:
    """Records a job in a new directory, and passes every new violation to `tell`."""

    def __init__(
        self, directory: pathlib.Path, tell: Callable[[Violation], None] = lambda violation: None
    ) -> None:
        self._recording = Recording(directory)
        self._tell = tell
        self._reader = StepReader()
        self._files_read = 0
        self._number = 0
        self._before: Values | None = None
        self._since: list[RecordedStep] = []
        self._steps = 0
        self._notes: list[str] = []
        self._kept: dict[tuple[str, str], Kept] = {}

    def look(self) -> None:
        self._keep(self._violations())

    def run(self, record: Record, begin_from: str | None = None) -> WatchReport:
        failure, recording = None, self._recording
        try:
            record(RecordingRequest(B, str(recording.directory), begin_from))
        except errors.EngineError as error:
            failure = str(error)
        self.look()
        self._keep(self._of_next_batch())
        settings = recording.settings if recording.is_described else None
        kept = list(self._kept.values())
        return WatchReport(settings, self._steps, kept, self._notes, failure or recording.failure)

    def _keep(self, violations: Iterable[Violation]) -> None:
        for violation in violations:
            key = violation.invariant, violation.where
            if key in self._kept:
                self._kept[key].steps += 1
            else:
                self._kept[key] = Kept(violation, 1)
                self._tell(violation)

    def _violations(self) -> Iterator[Violation]:
        if not self._recording.is_described:
            return
        for path in self._recording.step_files()[self._files_read :]:
            of_cores = self._reader.read(path)
            step = joined_step(of_cores)
            self._files_read += 1
            self._number = step.number
            for name in unused_gradients(of_cores):
                text = "its gradient reaches no table, but its gradient on another core does"
                yield Violation(step.number, UPDATE, f"activation {name}", text)
            if self._before is None:
                self._before = step.values[VARIABLES]
                continue
            self._since.append(step)
            if VARIABLES in step.values:
                yield from self._of_interval(self._before)
                self._before, self._since = step.values[VARIABLES], []

    def _of_next_batch(self) -> Iterator[Violation]:
        if self._before is None or self._since:
            return
        missing = [RecordedStep(self._number + 1, {})]
        interval = Interval(self._steps, self._before, missing, self._ids(1))
        for table in self._recording.settings["tables"]:
            yield from invariants.check_ids(interval, table)

    def _ids(self, steps: int) -> list[IdsOfFeatures]:
        settings = self._recording.settings
        features, cores = lookups.features_of(settings["tables"]), settings["cores"]
        positions = range(self._steps, self._steps + steps)
        return [ids_of_step(self._recording, each, cores, features) for each in positions]

    def _of_interval(self, before: Values) -> Iterator[Violation]:
        settings = self._recording.settings
        interval = Interval(self._steps, before, self._since, self._ids(len(self._since)))
        self._steps += len(self._since)
        yield from invariants.check_finite(interval)
        yield from invariants.check_global_step(interval)
        for table in settings["tables"]:
            yield from self._of_table(interval, table)

    def _of_table(self, interval: Interval, table: TableDescription) -> Iterator[Violation]:
        yield from invariants.check_ids(interval, table)
        yield from invariants.check_slots(interval, table)
        yield from invariants.check_limits(interval, table)
        inputs = interval.inputs(table)
        if table["rule"] is None:
            self._note(table, "the model's own optimizer trains it")
        elif inputs is None:
            self._note(table, "the form of its ids is unknown")
        else:
            yield from invariants.check_lookups(interval, table)
            yield from invariants.check_untouched(interval, table, inputs)
            yield from invariants.check_update(interval, table, inputs)

    def _note(self, table: TableDescription, reason: str) -> None:
        text = f"Table {table['name']}: {reason}, so that lookups and updates are not checked."
        if text not in self._notes:
            self._notes.append(text)


@dataclasses.dataclass
class Kept:
    """The first occurrence of a violation, and the number of steps in which it occurs."""

    first: Violation
    steps: int


@dataclasses.dataclass
class WatchReport:
    """The violations of a watched job, one entry for each invariant and array."""

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
