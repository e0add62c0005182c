"""One side of a comparison, in a process of its own: `python -m` this module, with a file.

Each side has its interpreter, so they may have other versions of TensorFlow.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pathlib
import sys
import traceback
from typing import Any

NOTHING_TRAINED = 3
"""Exit status of a program that ran, and trained nothing that is recorded."""


def main(path: str) -> int:
    """Runs a program as a JSON file says; returns the exit status."""
    told: dict[str, Any] = json.loads(pathlib.Path(path).read_text())
    from estimator_bridge.legacy import spec
    from estimator_bridge.run import install, script
    from estimator_bridge.verify.recorder import Recorder
    from estimator_bridge.verify.recording import Recording
    from estimator_bridge.verify.sides import opened, side_of
    from estimator_bridge.verify.trainings import Trainings

    side = side_of(told["side"])
    if not side.stock and script.imports_bridge(told["script"]):
        # It says itself what it takes from the bridge, and what is to become of quirks.
        side = dataclasses.replace(side, quirks=None)
    elif not side.stock:
        install.install(replace=True)
        spec.set_default_quirks(side.quirks or "stock")
    replayed = told["replayed"]
    recorder = Recorder(
        told["directory"],
        side,
        steps=told["steps"],
        every=told["every"],
        begin_from=told["begin_from"],
        nudged=told["nudged"],
        replayed=None if replayed is None else Recording(replayed),
        program=_called(told["script"]),
    )
    with opened(side) as kind, recorder.attached(kind), Trainings(recorder).attached():
        try:
            script.run_script(told["script"], told["arguments"])
        except SystemExit as ended:  # A program may end with `sys.exit(0)`.
            if ended.code and recorder.steps_left:
                raise
            if ended.code:
                recorder.writer.failed(f"exit status {ended.code}")
        except Exception as error:
            # Its model_dir is another one, so it may miss there what it looks for.
            if recorder.steps_left:
                raise
            traceback.print_exc()
            lines = [line.strip() for line in str(error).splitlines()]
            # The last one says what is wrong, but for the nodes that TensorFlow puts below.
            last = [line for line in lines if line and not line.startswith("[[")][-1:]
            recorder.writer.failed(": ".join([type(error).__name__, *last])[:200])
    return 0 if recorder.steps_made else NOTHING_TRAINED


def _called(path: str) -> str:
    """Returns a program's name with what tells its versions apart."""
    digest = hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
    return f"{pathlib.Path(path).name}, SHA-256 {digest}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
