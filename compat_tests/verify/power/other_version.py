"""Records sides of honest pairs with another version of TensorFlow.

This command runs the side that JOB, a dict in JSON, describes:

    other_env/bin/python -m compat_tests.verify.power.other_version JOB
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import tensorflow as tf

import compat_tests.conftest  # noqa: F401  # Keras 2 comes before anything touches tf.keras.
from compat_tests.verify.power.comparing import Run
from estimator_bridge.verification.sides import RecordingRequest


@dataclasses.dataclass(frozen=True)
class RunElsewhere(Run):
    """How a side runs a program with another interpreter.

    Attributes:
        name: the key of the program in `honest.PROGRAMS`.
    """

    name: str = ""
    python: str = sys.executable

    def record(self, request: RecordingRequest) -> None:
        """Records the program in a process of the other interpreter.

        Raises:
            RuntimeError: the recording failed.
        """
        job = {
            "name": self.name,
            "sizes": {"batch_size": self.program.batch_size, "seed": self.program.seed},
            "side": self.side,
            "request": dataclasses.asdict(request),
        }
        command = [self.python, "-m", __name__, json.dumps(job)]
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode:
            raise RuntimeError(f"{self.python}: {ran.stderr}")


def main(text: str) -> None:
    from compat_tests.verify.power.honest import PROGRAMS

    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.ERROR)
    job = json.loads(text)
    program = dataclasses.replace(PROGRAMS[job["name"]], **job["sizes"])
    Run(program, job["side"]).record(RecordingRequest(**job["request"]))


if __name__ == "__main__":
    main(sys.argv[1])
