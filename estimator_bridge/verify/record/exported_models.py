"""Queries the models that a side exported, in processes that load TensorFlow alone."""

from __future__ import annotations

import json
import os
import subprocess

from estimator_bridge import errors
from estimator_bridge.verify.record import query_model
from estimator_bridge.verify.record.recording import SERVED, SIGNATURES, Recording

_NUM_BATCHES = 3
_WHOLE_MODEL = "the exported model"


def query(recording: Recording, inputs: Recording, python: str, examples: str | None) -> None:
    """Writes the answers of every exported model into the recording of its side.

    Args:
        inputs: the recording whose first batches are fed to the models.
        python: the interpreter of the side.
        examples: a TFRecord file of serialised Examples, for signatures that take such; None makes
            them of the batches.

    Raises:
        InvalidInput: `examples` does not exist.
    """
    if examples is not None and not os.path.isfile(examples):
        raise errors.InvalidInput(
            f"There is no file of Examples {examples!r}. Give the path of a TFRecord file, or "
            "leave `examples` out to use batches of the training."
        )
    for number, model in enumerate(recording.exported()):
        signatures = recording.directory / f"{SIGNATURES}-{number}.json"
        request = {
            "model": str(model),
            "batches": [str(batch) for batch in inputs.batches()[:_NUM_BATCHES]],
            "examples": examples,
            "answers": str(recording.directory / f"{SERVED}-{number}.npz"),
            "signatures": str(signatures),
        }
        file = recording.directory / f"query-{number}.json"
        file.write_text(json.dumps(request, indent=1))
        command = [python, "-m", query_model.__name__, str(file)]
        completed = subprocess.run(command, capture_output=True, text=True)
        if completed.returncode:
            lines = [line.strip() for line in completed.stderr.splitlines() if line.strip()]
            failed = {_WHOLE_MODEL: " ".join(lines[-1:])[:200]}
            signatures.write_text(json.dumps({"failed": failed, "signatures": {}}))
