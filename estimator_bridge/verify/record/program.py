"""Runs a program as one side, in a process of its own: `python -m` this module, with a JSON file.

Each side has its interpreter, so they may have other versions of TensorFlow.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import sys
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from estimator_bridge.verify.record.recorder import Recorder

NOTHING_TRAINED = 3
"""Exit status of a program that ran, and trained nothing that is recorded."""


def main(path: str) -> int:
    """Runs a program as a JSON file says; returns the exit status."""
    job = json.loads(pathlib.Path(path).read_text())
    from estimator_bridge.legacy import spec
    from estimator_bridge.run import install, script
    from estimator_bridge.verify.record.recorder import Recorder
    from estimator_bridge.verify.record.request import RecordingRequest
    from estimator_bridge.verify.record.tf2_recorder import Tf2Recorder
    from estimator_bridge.verify.sides import opened, side_of

    side = side_of(job["side"])
    if not side.stock and script.imports_bridge(job["script"]):
        # It imports the names that it wants, and sets its own quirks.
        side = dataclasses.replace(side, quirks=None)
    elif not side.stock:
        install.install(replace=True)
        spec.set_default_quirks(side.quirks or "stock")
    recorder = Recorder(
        RecordingRequest(**job["request"]),
        side,
        steps=job["steps"],
        every=job["every"],
        program=_name(job["script"]),
    )
    with opened(side) as kind, recorder.attached(kind), Tf2Recorder(recorder).attached():
        _run(recorder, job["script"], job["arguments"])
    return 0 if recorder.steps_done else NOTHING_TRAINED


def _run(recorder: Recorder, path: str, arguments: list[str]) -> None:
    """Runs a program; it may fail once its training is recorded, which the recording says."""
    from estimator_bridge.run import script

    try:
        script.run_script(path, arguments)
    except SystemExit as exited:  # A program may end with `sys.exit(0)`.
        if exited.code and recorder.steps_left:
            raise
        if exited.code:
            recorder.writer.failed(f"exit status {exited.code}")
    except Exception as error:
        # Its model_dir is another one, so it may not find there what it looks for.
        if recorder.steps_left:
            raise
        traceback.print_exc()
        lines = [line.strip() for line in str(error).splitlines()]
        # The last one says what is wrong, but for the nodes that TensorFlow puts below.
        last = [line for line in lines if line and not line.startswith("[[")][-1:]
        recorder.writer.failed(": ".join([type(error).__name__, *last])[:200])


def _name(path: str) -> str:
    """Returns a program's name with its hash, which tells versions apart."""
    digest = hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
    return f"{pathlib.Path(path).name}, SHA-256 {digest}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
