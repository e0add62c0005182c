"""Reads and writes the files that hold calibrations."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib

from estimator_bridge import errors
from estimator_bridge.planner.coefficients import Coefficients
from tf2_engine.types import Object


def write(path: str, coefficients: Coefficients) -> None:
    """Writes coefficients as JSON; raises CannotWrite if the file cannot be written."""
    text = json.dumps(coefficients.as_dict(), indent=2) + "\n"
    try:
        pathlib.Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise errors.CannotWrite(f"--calibration {path}: {error.strerror}.") from error


def read(path: str) -> Coefficients:
    """Reads coefficients that `write` wrote.

    Raises:
        InvalidInput: the file does not exist or is not a calibration: a coefficient is missing,
            unknown, negative or not a number.
    """
    again = "Write it anew, with `estimator-bridge plan --calibrate --calibration FILE`."
    try:
        values = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise errors.InvalidInput(f"--calibration {path}: {error}. {again}") from error
    fields = {field.name for field in dataclasses.fields(Coefficients)}
    if not isinstance(values, dict) or values.keys() != fields:
        keys = values.keys() if isinstance(values, dict) else set()
        raise errors.InvalidInput(
            f"--calibration {path} is not a calibration of this version: it lacks "
            f"{sorted(fields - keys)}, and has the unknown {sorted(keys - fields)}. {again}"
        )
    for name, value in values.items():
        if not _is_valid(name, value):
            raise errors.InvalidInput(f"--calibration {path}: {name} is {value!r}. {again}")
    return Coefficients(**values)


def _is_valid(name: str, value: Object) -> bool:
    if name == "source":
        return isinstance(value, str)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value >= 0
