"""Runs each side of a comparison in a separate process, and queries exported models.

The process of a side runs this module: it loads TensorFlow, and then waits for a line on stdin with
the path of a JSON file that describes its job.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, cast

from estimator_bridge import errors
from estimator_bridge.progress_line import Progress
from estimator_bridge.recording.files import SERVED, SIGNATURES, Recording
from estimator_bridge.run.script import StartedProgram, run_program
from estimator_bridge.verification.sides import (
    PERTURBED,
    SIDES,
    RecordingRequest,
    opened,
    side_of,
    side_of_role,
)
from tf2_engine import plain_text
from tf2_engine.types import Object

if TYPE_CHECKING:
    from estimator_bridge.verification.record.recorder import Recorder

_NOTHING_TRAINED = 3
"""Exit status of a side whose program trained no model that can be recorded."""

_WITHOUT_STOCK = (
    " If the program imports the bridge itself, give the original program, and pass this program "
    "with --against; if there is no original, compare two sides of the bridge (--a)."
)
_RECORDED = "Estimator of the bridge, no TableModel, and no class that it declares verifiable"
_LAST_LINES = 15
_MAX_ERROR = 300
_FAILURE = ".failure"
"""The suffix of the file in which a process writes why it failed."""
_NUM_QUERIED_BATCHES = 3


@dataclasses.dataclass(frozen=True)
class SideProgram:
    """A side, the program (a file or a module) that runs on it, and the Python interpreter."""

    side: str
    script: str
    python: str
    tf1: bool | None = None
    is_module: bool = False


@dataclasses.dataclass(frozen=True)
class ProcessRecorder:
    """Records a side in a separate process. Pass it to `procedure.side_by_side` as `record`."""

    programs: Mapping[str, SideProgram]
    arguments: Sequence[str]
    steps: int
    every: int | None
    progress: Progress
    waiting: dict[pathlib.Path, subprocess.Popen[str]] = dataclasses.field(default_factory=dict)

    def __call__(self, request: RecordingRequest) -> None:
        program = self.programs[request.side]
        file, log = (pathlib.Path(f"{request.directory}.{kind}") for kind in ("json", "log"))
        job = {
            "request": dataclasses.asdict(request),
            **dataclasses.asdict(program),
            "arguments": list(self.arguments),
            "steps": self.steps,
            "every": self.every,
        }
        file.write_text(json.dumps(job, indent=1))
        title = self._title(request)
        process = self._started(program.python, log, title)
        # If the process has ended already, its log says why.
        with contextlib.suppress(BrokenPipeError), cast(IO[str], process.stdin) as stdin:
            stdin.write(f"{file}\n")
        if request.next_role is not None:
            python = self.programs[side_of_role(request.next_role)].python
            log_of_next = log.with_name(f"{request.next_role}.log")
            with contextlib.suppress(OSError):  # the next run tries again, and reports the error
                self.waiting[log_of_next] = _started(python, log_of_next)
        status = self._followed(process, request, title)
        if status == _NOTHING_TRAINED:
            kinds, way_out = _RECORDED, ""
            if SIDES[program.side].stock:
                kinds, way_out = "Estimator of stock", _WITHOUT_STOCK
            raise errors.InvalidInput(
                f"{title}: {program.script} trained no {kinds}. Give the arguments with which the "
                f"program trains.{way_out}"
            )
        if status:
            raise errors.InvalidInput(failure_of(title, status, file.with_suffix(_FAILURE), log))

    def _title(self, request: RecordingRequest) -> str:
        program = self.programs[request.side]
        name = program.side
        if len({each.script for each in self.programs.values()}) > 1:
            name = f"{os.path.basename(program.script)}, {name}"
        why = ", perturbed" * (request.role == PERTURBED) + ", op by op" * request.sketches
        return f"side {request.side.upper()} ({name}){why}"

    def _started(self, python: str, log: pathlib.Path, title: str) -> subprocess.Popen[str]:
        try:
            return self.waiting.pop(log, None) or _started(python, log)
        except OSError as error:
            message = f"{title}: {python} does not start: {error}"
            raise errors.InvalidInput(message) from error

    def _followed(
        self, process: subprocess.Popen[str], request: RecordingRequest, title: str
    ) -> int:
        side, steps = Recording(request.directory), request.steps or self.steps
        end = time.monotonic() + (math.inf if request.seconds is None else request.seconds)
        self.progress(title, 0, steps)
        try:
            while process.poll() is None:
                self.progress(title, side.steps_done, steps)
                if request.steps and side.steps_done >= steps:
                    return 0
                if time.monotonic() > end:
                    raise errors.InvalidInput(f"{title} took longer than its time limit.")
                time.sleep(0.1)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        self.progress(title, side.steps_done, steps)
        return process.returncode


def _started(python: str, log: pathlib.Path) -> subprocess.Popen[str]:
    with open(log, "wb") as output:
        return subprocess.Popen(
            [python, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )


def failure_of(title: str, status: int, failure: pathlib.Path, log: pathlib.Path) -> str:
    messages, ended = [], f"{title} ended with exit status {status}."
    if failure.exists():
        messages, ended = [json.loads(failure.read_text())], f"{title} failed."
    elif status < 0:
        ended = f"{title} was ended by signal {signal.Signals(-status).name}."
    lines = log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
    last = (f"  | {line}" for line in lines)
    return plain_text.Lines(*messages, f"{ended} Its log is {log}; the log ends with", *last)


def query_exported_models(
    side: Recording, inputs: Recording, python: str, examples: str | None
) -> None:
    """Feeds the first batches of `inputs`, or the file `examples`, to every exported model."""
    if examples is not None and not os.path.isfile(examples):
        raise errors.InvalidInput(
            f"There is no file of Examples {examples!r}. Give the path of a TFRecord file, or "
            "leave `examples` out to use the training batches."
        )
    for number, model in enumerate(side.exported()):
        signatures = side.directory / f"{SIGNATURES}-{number}.json"
        request = {
            "model": str(model),
            "batches": [str(batch) for batch in inputs.batches()[:_NUM_QUERIED_BATCHES]],
            "examples": examples,
            "answers": str(side.directory / f"{SERVED}-{number}.npz"),
            "signatures": str(signatures),
        }
        file = side.directory / f"query-{number}.json"
        file.write_text(json.dumps(request, indent=1))
        command = [python, "-m", f"{__package__}.exported_models", str(file)]
        completed = subprocess.run(command, capture_output=True, text=True)
        if completed.returncode:
            lines = [line.strip() for line in completed.stderr.splitlines() if line.strip()]
            failed = {"the exported model": " ".join(lines[-1:])[:200]}
            signatures.write_text(json.dumps({"failed": failed, "signatures": {}}))


def main() -> int:
    _load()
    path = sys.stdin.readline().rstrip("\n")
    if not path:  # the command has ended
        return 0
    job = pathlib.Path(path)
    try:
        return _run_job(json.loads(job.read_text()))
    except Exception as error:
        job.with_suffix(_FAILURE).write_text(json.dumps(_described(error)))
        raise


def _load() -> None:
    from estimator_bridge.run import keras_choice

    # The recorder loads classes of layers before the program can choose its Keras.
    keras_choice.use_legacy_keras()
    import estimator_bridge.verification.record.recorder
    import estimator_bridge.verification.record.tf2_recorder  # noqa: F401


def _run_job(job: Mapping[str, Object]) -> int:
    from estimator_bridge.legacy import spec
    from estimator_bridge.run import install, script
    from estimator_bridge.run.tf1 import running
    from estimator_bridge.verification.record.recorder import Recorder
    from estimator_bridge.verification.record.tf2_recorder import Tf2Recorder

    side = side_of(job["side"])
    started = script.program_of(job["script"], job["is_module"])
    if not side.stock and script.imports_bridge(started.file):
        # The program imports any modules, and sets its own quirks.
        side = dataclasses.replace(side, quirks=None)
    elif not side.stock:
        install.install(replace=True)
        spec.set_default_quirks(side.quirks or "stock")
    program = pathlib.Path(started.file)
    # The hash distinguishes versions of the program.
    name = f"{program.name}, SHA-256 {hashlib.sha256(program.read_bytes()).hexdigest()}"
    request = RecordingRequest(**job["request"])
    steps, every = job["steps"], job["every"]
    view = running.as_needed(started.file, job["tf1"], print, folder=started.folder)
    with opened(side) as kind, view as is_tf1:
        recorder = Recorder(request, side, steps=steps, every=every, program=name, is_tf1=is_tf1)
        with recorder.attached(kind), Tf2Recorder(recorder).attached():
            _run_program(recorder, started, job["arguments"])
    if not recorder.steps_done and recorder.has_trained:
        raise errors.InvalidInput(
            f"{program.name} trained, but its global step did not change, so there are no steps to "
            "compare. Pass the step to the optimizer: minimize(loss, "
            "global_step=tf.compat.v1.train.get_global_step())."
        )
    return 0 if recorder.steps_done else _NOTHING_TRAINED


def _described(error: Exception) -> str:
    from estimator_bridge.run import program_lines
    from estimator_bridge.run.tf1 import running

    message = error.msg if isinstance(error, SyntaxError) else str(error)
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    # TensorFlow lists nodes below the line that describes the error.
    last_lines = [line for line in lines if not line.startswith("[[")][-1:]
    if isinstance(error, errors.EngineError):
        return " ".join(lines)
    described = ": ".join([type(error).__name__, *last_lines])[:_MAX_ERROR]
    where = program_lines.line_of_error(error)
    described = f"{where}: {described}" if where else described
    return " ".join(filter(None, [described, running.remedy_for(error)]))


def _run_program(recorder: Recorder, program: StartedProgram, arguments: list[str]) -> None:
    from estimator_bridge.run import program_lines

    try:
        run_program(program, arguments)
    except SystemExit as exited:  # programs may end with `sys.exit(0)`
        # If the exit code is a string, Python prints the string, and the status is 1.
        text = f": {exited.code}" if isinstance(exited.code, str) else ""
        ended = f"exit status {1 if text else exited.code}{text}"
        if exited.code and recorder.steps_left:
            where = program_lines.line_of_error(exited)
            raise errors.InvalidInput(
                f"{where or program.file}: the program ended with {ended}, after "
                f"{recorder.steps_done} steps."
            ) from exited
        if exited.code:
            recorder.writer.note("failed", ended)
    except Exception as error:
        # The program's model_dir is redirected, so the program may miss files there.
        if recorder.steps_left:
            raise
        traceback.print_exc()
        recorder.writer.note("failed", _described(error))


class Folder:
    """The directory `keep`, or a temporary directory, in which only logs stay after an error."""

    def __init__(self, keep: str | None) -> None:
        self.directory = pathlib.Path(keep or tempfile.mkdtemp(prefix="estimator-bridge-"))
        self.directory = self.directory.absolute()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._is_kept = keep is not None
        self.keeps_logs = False

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._is_kept:
            return
        for path in self.directory.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.suffix != ".log":
                path.unlink()
        if kind is None and not self.keeps_logs:
            shutil.rmtree(self.directory)


if __name__ == "__main__":
    sys.exit(main())
