"""One job that is watched while it runs."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable

from estimator_bridge import errors
from estimator_bridge.verify.record.recording import B, Record, Recording, RecordingRequest
from estimator_bridge.verify.watch.report import Kept, WatchReport
from estimator_bridge.verify.watch.violation import Violation
from estimator_bridge.verify.watch.watcher import Watcher


class WatchedJob:
    """A job, recorded in a directory that is created for it.

    Args:
        tell: called with every new violation.
    """

    def __init__(
        self, directory: pathlib.Path, tell: Callable[[Violation], None] = lambda violation: None
    ) -> None:
        self._directory = directory
        self._recording = Recording(directory)
        self._watcher = Watcher(self._recording)
        self._tell = tell
        self._kept: dict[tuple[str, str], Kept] = {}

    def look(self) -> None:
        self._keep(self._watcher.check())

    def run(self, record: Record, begin_from: str | None = None) -> WatchReport:
        """Runs the job until it ends or fails; returns the report.

        Args:
            record: runs a side; it may call `look` meanwhile.
        """
        failure = None
        try:
            record(RecordingRequest(B, str(self._directory), begin_from))
        except errors.EngineError as error:
            failure = str(error)
        self.look()
        self._keep(self._watcher.check_next_batch())
        recording = self._recording
        settings = recording.settings if recording.is_described else None
        return WatchReport(
            settings,
            self._watcher.steps,
            list(self._kept.values()),
            self._watcher.notes,
            failure or recording.failure,
        )

    def _keep(self, violations: Iterable[Violation]) -> None:
        for violation in violations:
            key = violation.invariant, violation.where
            if key in self._kept:
                self._kept[key].steps += 1
            else:
                self._kept[key] = Kept(violation, 1)
                self._tell(violation)
