"""Runs sides of honest pairs on another version of TensorFlow.

    other_env/bin/python -m compat_tests.verify.power.other_version

starts a process that imports TensorFlow once and then serves one side after another: it reads one
line of JSON per side and answers with one line.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from types import TracebackType

from compat_tests.verify.power.program import Program
from estimator_bridge.verification.sides import RecordingRequest

_DONE = "done"


class OtherVersion:
    """A process of another interpreter that records sides; a context manager.

    Attributes:
        tensorflow: the version of TensorFlow there.
    """

    def __init__(self, python: str) -> None:
        self._process = subprocess.Popen(
            [python, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.tensorflow = self._answer()

    def __enter__(self) -> OtherVersion:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def record(
        self, program: str, of_program: Program, side: str, request: RecordingRequest
    ) -> None:
        """Records a program of `honest.PROGRAMS` at the batch size and seed of `of_program`.

        Raises:
            RuntimeError: the recording failed in the other process.
        """
        job = {
            "program": program,
            "batch_size": of_program.batch_size,
            "seed": of_program.seed,
            "side": side,
            "request": dataclasses.asdict(request),
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        if answer != _DONE:
            raise RuntimeError(f"TensorFlow {self.tensorflow}: {answer}")

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip() or "its process has ended"


@dataclasses.dataclass(frozen=True)
class RunElsewhere:
    """How a side runs a program on another version of TensorFlow.

    Attributes:
        name: one of `honest.PROGRAMS`.
    """

    name: str
    program: Program
    version: OtherVersion
    side: str = "bridge-ops"

    def record(self, request: RecordingRequest) -> None:
        self.version.record(self.name, self.program, self.side, request)


def main() -> None:
    # Keeps output that programs print apart from the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    import tensorflow as tf

    import compat_tests.conftest  # noqa: F401  # Keras 2 comes before anything touches tf.keras.

    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
    answers.write(tf.__version__ + "\n")
    for line in sys.stdin:
        answers.write(_answer_to(line) + "\n")


def _answer_to(line: str) -> str:
    """Records a side; returns the answer as one line."""
    from compat_tests.verify.power.comparing import Run
    from compat_tests.verify.power.honest import PROGRAMS

    job = json.loads(line)
    program = dataclasses.replace(
        PROGRAMS[job["program"]], batch_size=job["batch_size"], seed=job["seed"]
    )
    try:
        Run(program, job["side"]).record(RecordingRequest(**job["request"]))
    except Exception as error:  # the next side may still succeed
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return _DONE


if __name__ == "__main__":
    main()
