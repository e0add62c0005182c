"""Has what a side exported answer questions, in a process that holds TensorFlow alone."""

from __future__ import annotations

import json
import os
import subprocess

from estimator_bridge import errors
from estimator_bridge.verify import served
from estimator_bridge.verify.recording import FOUND, SERVED, Recording

BATCHES = 3
"""How many batches of the training are asked."""
_WHOLE = "the exported model"


def ask(
    recording: Recording, questions: Recording, python: str, examples: str | None = None
) -> None:
    """Writes the answers of every exported model into the recording of its side.

    Args:
        questions: the recording of whose batches the questions are.
        python: the interpreter of the side.
        examples: a TFRecord file of serialised Examples, for signatures that take such; None makes
            them of the batches.

    Raises:
        InvalidInput: `examples` is not there.
    """
    if examples is not None and not os.path.isfile(examples):
        raise errors.InvalidInput(
            f"There is no file of Examples {examples!r}. Give the path of a TFRecord file, or "
            "leave `examples` out: then batches of the training are asked."
        )
    for number, model in enumerate(recording.exported()):
        found = recording.directory / f"{FOUND}-{number}.json"
        told = {
            "model": str(model),
            "batches": [str(batch) for batch in questions.batches()[:BATCHES]],
            "examples": examples,
            "answers": str(recording.directory / f"{SERVED}-{number}.npz"),
            "found": str(found),
        }
        file = recording.directory / f"ask-{number}.json"
        file.write_text(json.dumps(told, indent=1))
        command = [python, "-m", served.__name__, str(file)]
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode:
            last = [line.strip() for line in ran.stderr.splitlines() if line.strip()][-1:]
            unasked = {_WHOLE: " ".join(last)[:200]}
            found.write_text(json.dumps({"unasked": unasked, "signatures": {}}))
