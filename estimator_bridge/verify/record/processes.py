"""Runs each side of a comparison in a process of its own, and reports its progress."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess
import time
from collections.abc import Mapping, Sequence

from estimator_bridge import errors
from estimator_bridge.progress_line import Progress
from estimator_bridge.verify.record import program
from estimator_bridge.verify.record.recording import read_progress
from estimator_bridge.verify.record.request import PERTURBED, RecordingRequest
from estimator_bridge.verify.sides import SIDES

_LAST_LINES = 15


@dataclasses.dataclass(frozen=True)
class ProcessRecorder:
    """Records a side in a process; it is a `Record` of `procedure.side_by_side`.

    Attributes:
        sides: the name of side "a" and of side "b".
        pythons: the interpreter of each.
        scripts: the program of each; both get the same arguments.
        arguments: of the programs.
        steps: of training.
        every: steps from one look at the variables to the next; None is the side's choice.
        progress: called with what runs, and how many of how many steps are done.
    """

    sides: Mapping[str, str]
    pythons: Mapping[str, str]
    scripts: Mapping[str, str]
    arguments: Sequence[str]
    steps: int
    every: int | None
    progress: Progress

    def __call__(self, request: RecordingRequest) -> None:
        """Runs the program of a side.

        Raises:
            InvalidInput: it fails, or trains nothing that is recorded.
        """
        side = request.side
        directory = pathlib.Path(request.directory)
        file = directory.with_name(f"{request.role}.json")
        file.write_text(json.dumps(self._job(request), indent=1))
        log = directory.with_name(f"{request.role}.log")
        title = self._title(request)
        command = [self.pythons[side], "-m", program.__name__, str(file)]
        status = self._run(command, log, directory, title)
        if status == program.NOTHING_TRAINED:
            stock = SIDES[self.sides[side]].stock
            raise errors.InvalidInput(
                f"{title}: {self.scripts[side]} trained no TPUEstimator of "
                f"{'stock' if stock else 'the bridge, and no class that it declares verifiable'}. "
                "Give it the arguments with which it trains."
            )
        if status:
            raise errors.InvalidInput(f"{title} failed, with status {status}:\n{_last_lines(log)}")

    def _job(self, request: RecordingRequest) -> dict[str, object]:
        """Returns what `program.main` reads."""
        return {
            "request": dataclasses.asdict(request),
            "side": self.sides[request.side],
            "steps": self.steps,
            "every": self.every,
            "script": self.scripts[request.side],
            "arguments": list(self.arguments),
        }

    def _title(self, request: RecordingRequest) -> str:
        side = request.side
        name = self.sides[side]
        if self.scripts["a"] != self.scripts["b"]:
            name = f"{os.path.basename(self.scripts[side])}, {name}"
        return f"side {side.upper()} ({name}){', perturbed' * (request.role == PERTURBED)}"

    def _run(
        self, command: Sequence[str], log: pathlib.Path, directory: pathlib.Path, title: str
    ) -> int:
        self.progress(title, 0, self.steps)
        with open(log, "wb") as output:
            try:
                process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            except OSError as error:
                raise errors.InvalidInput(
                    f"{title}: {command[0]} does not start: {error}"
                ) from error
            try:
                while process.poll() is None:
                    self.progress(title, *(read_progress(directory) or (0, self.steps)))
                    time.sleep(0.1)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        self.progress(title, *(read_progress(directory) or (0, self.steps)))
        return process.returncode


def _last_lines(log: pathlib.Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join(f"    {line}" for line in lines[-_LAST_LINES:])
