"""Creates small recordings to compare."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np

from estimator_bridge.recording.files import (
    ACTIVATIONS,
    GRADIENTS,
    LOSS,
    VARIABLES,
    Recording,
    RecordingWriter,
)
from estimator_bridge.verification.compare import comparison
from estimator_bridge.verification.explain import causes
from estimator_bridge.verification.result import Result
from estimator_bridge.verification.sides import A, RecordingRequest

TABLE = "tbl_words"
SETTINGS: dict[str, Any] = {
    "program": "train.py",
    "side": "bridge",
    "engine": "bridge",
    "tensorflow": "2.15.1",
    "use_tpu": True,
    "where": "host driver",
    "cores": 1,
    "quirks": "stock",
    "every": 1,
    "settings": [
        ["spec", "optimization_parameters", "AdagradParameters", ""],
        ["spec", "clipping_limit", "0.5", "stock reads it nowhere"],
    ],
    "tables": [
        {
            "name": TABLE,
            "variable": "words",
            "slots": {"words/Adagrad": "accumulators"},
            "combiner": "mean",
            "optimizer": "AdagradParameters",
            "features": {"word": [0, None]},
            "rule": None,
        }
    ],
    "config": {"table_descriptor.tbl_words.dimension": "2"},
}


def rows() -> Any:
    """Creates the rows of a table, [6, 2] float32."""
    return np.arange(1, 13, dtype=np.float32).reshape(6, 2) / 8


def batch(*ids: int) -> dict[str, Any]:
    samples = np.arange(len(ids), dtype=np.int64)
    return {
        "features/word.indices": np.stack([samples, np.zeros_like(samples)], 1),
        "features/word.values": np.array(ids, np.int64),
        "features/word.shape": np.array([len(ids), 1], np.int64),
    }


def state(table: Any, accumulators: float = 0.1) -> dict[str, Any]:
    return {
        "words": table,
        "words/Adagrad": np.full_like(table, accumulators),
        "dense/kernel": np.ones([2, 1], np.float32),
        "global_step": np.int64(0),
    }


def record(
    directory: pathlib.Path,
    *,
    settings: dict[str, Any] | None = None,
    start: Any = None,
    steps: tuple[dict[str, Any], ...] = (),
    batches: tuple[dict[str, Any], ...] = (),
) -> Recording:
    """Writes a recording.

    Args:
        settings: replaces items of `SETTINGS`.
        start: the variables before training; by default `state(rows())`.
        steps: for each step a dict from groups to arrays.
    """
    writer = RecordingWriter(directory)
    writer.note("settings", {**SETTINGS, **(settings or {})})
    writer.step(0, {VARIABLES: state(rows()) if start is None else start})
    for number, values in enumerate(steps, 1):
        writer.step(number, values)
    number = writer.input(0)
    for values in batches:
        writer.batch(values, number)
    return Recording(directory)


def explained(a: Recording, b: Recording) -> Result:
    """Compares two recordings, and names the causes of a difference."""
    result = comparison.compare(a, b)
    result.causes = causes.explain(result)
    return result


def judged(directory: pathlib.Path, a: dict[str, Any], b: dict[str, Any]) -> Result:
    """Records two sides, each with options of `record`, compares and explains."""
    return explained(record(directory / "a", **a), record(directory / "b", **b))


def request(directory: pathlib.Path) -> RecordingRequest:
    return RecordingRequest(A, str(directory))


def step(table: Any, *, activation: Any = None, loss: float = 0.5, gradient: Any = 1.0) -> Any:
    values = {
        VARIABLES: state(table),
        LOSS: {"loss": np.float32(loss)},
        GRADIENTS: {"word": np.full([2, 2], gradient, np.float32)},
    }
    if activation is not None:
        values[ACTIVATIONS] = {"word": activation}
    return values
