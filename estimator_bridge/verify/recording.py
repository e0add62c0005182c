"""What one side did, as files: its settings, its start, every step, every batch. numpy alone.

A step's file holds what changed since the one before: large tables change in few rows.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

Array = Any
"""An array of numpy, which is not installed where types are checked."""
Values = dict[str, Array]

VARIABLES, ACTIVATIONS, GRADIENTS, LOSS = "variables", "activations", "gradients", "loss"
EVALUATION, PREDICTION, EXPORT, SERVED = "evaluation", "prediction", "export", "served"

EXPORTED, FOUND = "exported", "found"
TF2, CHECKPOINT = "tf2", "checkpoint"
"""The engine of a side that is a program of TensorFlow 2, and of one that is no program."""

_ROWS = "rows of "
# Before every name in a file: `np.savez` has arguments of its own.
_KEY = "="
# Smaller arrays are written whole.
_WHOLE = 4096


class Step(NamedTuple):
    """One step of training.

    Attributes:
        number: the global step after it; that of the start is in the first.
        values: for each group the arrays by name. A step inside a device loop has no variables.
    """

    number: int
    values: dict[str, Values]


class Writer:
    """Writes a recording into a directory, which it makes."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = pathlib.Path(directory)
        self.directory.mkdir(parents=True)
        self._last: Values = {}
        self._inputs: list[int] = []
        self._batches: list[int] = []
        self._outcomes: dict[str, int] = {}
        self._left_out = 0

    def settings(self, found: Mapping[str, Any]) -> None:
        """Writes what is known of the side, a dict that fits JSON."""
        _write_json(self.directory / "settings.json", found)

    def step(self, number: int, values: Mapping[str, Mapping[str, Any]]) -> None:
        """Writes a step; the first is the state before training."""
        arrays: Values = {}
        for group, named in values.items():
            for name, value in named.items():
                array = np.asarray(value)
                if group == VARIABLES:
                    arrays.update(self._changed(f"{group}:{name}", array))
                else:
                    arrays[f"{group}:{name}"] = array
        write_arrays(self.directory / f"step-{number:08d}.npz", arrays)

    def input(self, step: int) -> int:
        """Returns the number, from 0, of an input of training that begins after so many steps."""
        self._inputs.append(step)
        self._batches.append(0)
        _write_json(self.directory / "inputs.json", self._inputs)
        return len(self._inputs) - 1

    def batch(self, values: Mapping[str, Any], of: int) -> None:
        """Writes a batch of an input; some are read ahead, and perhaps not trained on."""
        path = self.directory / f"batch-{of:04d}-{self._batches[of]:08d}.npz"
        self._batches[of] += 1
        write_arrays(path, {name: np.asarray(value) for name, value in values.items()})

    def outcome(self, kind: str, values: Mapping[str, Any]) -> None:
        """Writes the metrics of an evaluation, the predictions of a call, or an export."""
        number = self._outcomes.get(kind, 0)
        self._outcomes[kind] = number + 1
        write_arrays(
            self.directory / f"{kind}-{number}.npz",
            {name: np.asarray(value) for name, value in values.items()},
        )

    def left_out(self) -> None:
        """Says that the program trained another model, which is not recorded."""
        self._left_out += 1
        _write_json(self.directory / "left_out.json", self._left_out)

    def failed(self, why: str) -> None:
        """Says that the program failed after its training."""
        _write_json(self.directory / "failed.json", why)

    def progress(self, done: int, total: int) -> None:
        """Says how far training is, to whoever looks into the directory."""
        _write_json(self.directory / "progress.json", {"done": done, "total": total})

    def _changed(self, key: str, array: Array) -> Values:
        before = self._last.get(key)
        self._last[key] = array
        if before is None or before.shape != array.shape or array.size < _WHOLE:
            return {key: array}
        same = (before == array).reshape(len(array), -1).all(1)
        (rows,) = np.nonzero(~same)
        return {key: array[rows], _ROWS + key: rows}


class Recording:
    """Reads what a `Writer` wrote."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = pathlib.Path(directory)

    @property
    def settings(self) -> dict[str, Any]:
        """What is known of the side."""
        return dict(json.loads((self.directory / "settings.json").read_text()))

    @property
    def failure(self) -> str | None:
        """Why the program failed after its training, or None."""
        path = self.directory / "failed.json"
        return str(json.loads(path.read_text())) if path.exists() else None

    @property
    def left_out(self) -> int:
        """How many trainings of other models were not recorded."""
        path = self.directory / "left_out.json"
        return int(json.loads(path.read_text())) if path.exists() else 0

    def steps(self) -> Iterator[Step]:
        """Yields the steps in order, the variables of each in full."""
        variables: Values = {}
        for path in sorted(self.directory.glob("step-*.npz")):
            values: dict[str, Values] = {}
            stored = read_arrays(path)
            for key, array in stored.items():
                if key.startswith(_ROWS):
                    continue
                group, _, name = key.partition(":")
                if group == VARIABLES:
                    if _ROWS + key in stored:
                        # A copy: whoever holds the step before compares with it.
                        whole = variables[name].copy()
                        whole[stored[_ROWS + key]] = array
                        array = whole
                    variables[name] = array
                values.setdefault(group, {})[name] = array
            yield Step(int(path.stem.partition("-")[2]), values)

    @property
    def inputs(self) -> list[int]:
        """The steps that were made when each input of training began."""
        path = self.directory / "inputs.json"
        return list(json.loads(path.read_text())) if path.exists() else []

    def batches(self, of: int | None = None) -> list[pathlib.Path]:
        """Returns the files of the batches of an input, from 0, or of all inputs, in order."""
        return sorted(self.directory.glob("batch-*" if of is None else f"batch-{of:04d}-*"))

    def batch(self, number: int) -> Values | None:
        """Returns the batch of a step, from 0, of one core; None where none is written."""
        before = [of for of, step in enumerate(self.inputs) if step <= number]
        if not before:
            return None
        files = self.batches(before[-1])
        at = number - self.inputs[before[-1]]
        return read_arrays(files[at]) if at < len(files) else None

    def exported(self) -> list[pathlib.Path]:
        """Returns the exported models, in order."""
        return sorted(self.directory.glob(f"{EXPORTED}-*"))

    def unasked(self, number: int) -> dict[str, str]:
        """Returns the signatures of an exported model that could not be asked, and why."""
        return dict(self._found(number).get("unasked", {}))

    def signatures(self, number: int) -> dict[str, dict[str, str]]:
        """Returns the types of what each signature of an exported model takes and gives."""
        return dict(self._found(number).get("signatures", {}))

    def _found(self, number: int) -> dict[str, Any]:
        path = self.directory / f"{FOUND}-{number}.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def numbers(self) -> list[int]:
        """Returns the numbers of the steps, the start with them."""
        return sorted(int(path.stem.partition("-")[2]) for path in self.directory.glob("step-*"))

    def outcomes(self) -> dict[str, Values]:
        """Returns evaluations, predictions, exports and what they answer, by kind and number."""
        return {
            path.stem: read_arrays(path)
            for kind in (EVALUATION, PREDICTION, EXPORT, SERVED)
            for path in sorted(self.directory.glob(f"{kind}-*.npz"))
        }


def read_arrays(path: pathlib.Path) -> Values:
    """Returns the arrays of a file by name."""
    with np.load(path) as stored:
        return {key.removeprefix(_KEY): stored[key] for key in stored.files}


def read_progress(directory: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Returns how far a recording is, (steps done, of); None if it is not told yet."""
    path = pathlib.Path(directory) / "progress.json"
    if not path.exists():
        return None
    found = json.loads(path.read_text())
    return int(found["done"]), int(found["total"])


def write_arrays(path: pathlib.Path, arrays: Values) -> None:
    """Writes arrays by name."""
    # Another process may look at any time: it sees a whole file, or none.
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as file:
        np.savez(file, **{_KEY + name: _plain(array) for name, array in arrays.items()})
    partial.replace(path)


def _plain(array: Array) -> Array:
    # Strings of TensorFlow are objects, which would be pickled.
    return array.astype(np.bytes_) if array.dtype == object else array


def _write_json(path: pathlib.Path, value: Any) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value, indent=1))
    partial.replace(path)
