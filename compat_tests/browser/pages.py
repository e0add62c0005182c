"""Writes pages of `verify` to look at: `python -m compat_tests.browser.pages DIRECTORY`."""

from __future__ import annotations

import pathlib
import sys
import tempfile
from typing import Any

import numpy as np

from compat_tests.support import recordings
from compat_tests.support.recordings import batch, rows, step
from estimator_bridge.cli.verify import provenance
from estimator_bridge.recording.files import (
    EVALUATION,
    EXPORT,
    PREDICTION,
    SERVED,
    VARIABLES,
    RecordingWriter,
)
from estimator_bridge.verification.compare import comparison
from estimator_bridge.verification.explain import causes
from estimator_bridge.verification.report import page
from estimator_bridge.verification.result import Result

STEPS = 30
LONG = "a_table_with_a_name_that_is_as_long_as_those_of_real_programs_weighted_by_its_weights"


def write(directory: pathlib.Path) -> None:
    """Writes pages of sides that are equal to the bit, nearly, and not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    cases = {"bit": (0.0, 1), "rounded": (2.0**-22, 1), "unequal": (1e-3, 1), "wide": (1e-3, 30)}
    for name, (off, num_tables) in cases.items():
        result = _result(off, num_tables)
        result.about = provenance(__file__)
        written = page.page(result, "train.py --data_dir data --use_tpu")
        (directory / f"{name}.html").write_text(written)


def _result(off: float, num_tables: int) -> Result:
    """Returns the result for sides whose tables diverge with each step."""
    table = {**recordings.SETTINGS["tables"][0], "name": LONG}
    more = [
        {**table, "name": f"table_{i}", "variable": f"table_{i}", "slots": {}, "features": {}}
        for i in range(1, num_tables)
    ]
    settings = {"tables": [table, *more], "settings": _settings(num_tables)}
    with tempfile.TemporaryDirectory() as temporary:
        sides = []
        for name, apart in (("a", 0.0), ("b", off)):
            steps = []
            for number in range(STEPS):
                grown = np.float32(1 + number / 8)
                moved = rows() * grown
                moved[2] += np.float32(apart * number)
                others = {each["variable"]: moved for each in more}
                activation = (rows() * grown)[[1, 2]]
                values = step(moved, activation=activation, gradient=1 / grown)
                values[VARIABLES].update(others)
                steps.append(values)
            side = recordings.record(
                pathlib.Path(temporary) / name,
                settings=settings,
                start=steps[0][VARIABLES],
                steps=tuple(steps),
                batches=(batch(1, 2),) * STEPS,
            )
            _follow(side.directory, apart)
            sides.append(side)
        result = comparison.compare(*sides)
        result.causes = causes.explain(result)
    return result


def _settings(num_tables: int) -> list[list[str]]:
    """Returns a setting that is ignored, and some of each table."""
    added = [[f"table table_{i}", "combiner", "mean", ""] for i in range(num_tables)]
    return [*recordings.SETTINGS["settings"], *added]


def _follow(directory: pathlib.Path, apart: float) -> None:
    """Writes the evaluation, predictions and export of a side."""
    outcomes: dict[str, dict[str, Any]] = {
        EVALUATION: {"accuracy": np.float32(0.75), "loss": np.float32(0.5 + apart)},
        PREDICTION: {"probabilities": np.full(8, 0.5, np.float32)},
        EXPORT: {"words": rows(), "dense/kernel": np.ones([2, 1], np.float32)},
        SERVED: {"serving_default: probabilities": np.full(8, 0.5 + apart, np.float32)},
    }
    # Beside the recording, whose directory is there already.
    writer = RecordingWriter(directory / "after")
    for kind, values in outcomes.items():
        writer.outcomes.write(writer.outcomes.begin(kind), values)
    for file in writer.directory.glob("*.npz"):
        file.rename(directory / file.name)


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]))
