"""Reads and writes the files of a recording: settings, initial variables, steps, and batches.

docs/recording.md describes the files. The file of a step contains only the rows that changed.
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, TypedDict

import numpy as np

from estimator_bridge import errors
from estimator_bridge.recording import array_files, outcome_files
from estimator_bridge.recording.outcome_files import read_json, write_json
from tf2_engine.types import Array, Object

Values = array_files.Values
read_arrays, write_arrays = array_files.read_arrays, array_files.write_arrays

VARIABLES, ACTIVATIONS, GRADIENTS, LOSS = "variables", "activations", "gradients", "loss"
"""The groups of the arrays of a step."""
SUMMED_ROWS = " (rows)"
"""The suffix of the array with a sparse gradient's row numbers. Gradients are summed by row."""
EVALUATION, PREDICTION = outcome_files.EVALUATION, outcome_files.PREDICTION
EXPORT, SERVED = outcome_files.EXPORT, outcome_files.SERVED
"""Two kinds of outcomes: an exported model, and the answers of exported models ("served")."""
EXPORTED, SIGNATURES = "exported", "signatures"
MODEL_OPS = "ops"
"""The group with sketches of the values of a model's ops; see `model_ops`."""
TF2, KERAS, CHECKPOINT, PORT = "tf2", "keras", "checkpoint", "port"
"""What a side of a comparison can be: a TensorFlow 2 program, a Keras model, a checkpoint, or a
`Replay`.
"""
FORMAT, VERSION = "estimator-bridge recording", 1
"""The name and version of the format. docs/recording.md says when the version changes."""
MEASURED = "perturbed"
"""The folder of side A's second run, whose initial values differ in the last bit, if recorded."""

_OUTSIDE = ("tpu_embedding_dummy_table_variable_", "signal_early_stopping/")
_ROWS = "rows of "
# Smaller arrays are written whole.
_MIN_SPARSE_SIZE = 4096


class RuleDescription(TypedDict):
    """The update rule of a table; its settings have the engine's names.

    Attributes:
        kind: the name of the engine's class.
        multipliers: for each step, the factor of the activations' gradients; empty means 1.
    """

    kind: str
    settings: dict[str, float | bool | None]
    rates: list[float]
    multipliers: list[float]


class TableDescription(TypedDict):
    """A table of one side of a comparison.

    Attributes:
        variable: the name of the variable with the rows.
        slots: maps the variable of each slot to the name of the slot.
        features: maps each feature's key to the maximum sequence length (or 0) and the key of the
            weights.
        rule: None if the model's own optimizer trains the table.
    """

    name: str
    variable: str
    slots: dict[str, str]
    combiner: str | None
    optimizer: str | None
    features: dict[str, tuple[int, str | None]]
    rule: RuleDescription | None


class _OfSome(TypedDict, total=False):
    computed: list[str]
    arithmetic: str
    cuts_exports: bool


class SideDescription(_OfSome):
    """One side of a comparison, as docs/verify.md lists it under `sides`."""

    program: str
    side: str
    engine: str
    tensorflow: str
    use_tpu: bool
    where: str
    cores: int
    quirks: str
    every: int
    settings: Sequence[tuple[str, str, str, str]]
    tables: list[TableDescription]
    config: dict[str, str]


class Step(NamedTuple):
    """One step of training: the global step after it, and a dict of arrays for each group."""

    number: int
    values: dict[str, Values]


class RecordingWriter:
    """Writes a recording into a directory that it creates."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = pathlib.Path(directory)
        self.directory.mkdir(parents=True)
        self.note("format", {"format": FORMAT, "version": VERSION})
        self.outcomes = outcome_files.OutcomeWriter(self.directory)
        self._variables: Values = {}
        self._input_starts: list[int] = []
        # The number of files written, by kind.
        self._counts: collections.Counter[str] = collections.Counter()

    def note(self, name: str, value: object) -> None:
        write_json(self.directory / f"{name}.json", value)

    def step(self, number: int, values: Mapping[str, Mapping[str, Object]]) -> None:
        arrays: dict[str, Object] = {}
        for group, named in values.items():
            for name, value in named.items():
                key = f"{group}:{name}"
                arrays[key] = value
                if group == VARIABLES:
                    arrays.update(self._changed_rows(key, np.asarray(value)))
        write_arrays(self.directory / f"step-{number:08d}.npz", arrays)

    def input(self, step: int) -> int:
        """Returns the zero-based index of the training input that begins after `step` steps."""
        self._input_starts.append(step)
        self.note("inputs", self._input_starts)
        return len(self._input_starts) - 1

    def batch(self, values: Mapping[str, Object], input_number: int) -> None:
        prefix = f"batch-{input_number:04d}"
        number = self._counts[prefix]
        self._counts[prefix] += 1
        write_arrays(self.directory / f"{prefix}-{number:08d}.npz", values)

    def outcome(self, kind: str, values: Mapping[str, Object]) -> None:
        self.outcomes.write(self.outcomes.begin(kind), values)

    def skipped_training(self) -> None:
        self._counts["skipped"] += 1
        self.note("skipped", self._counts["skipped"])

    def perturbed(self, ulps: Mapping[str, int], substituted: Sequence[str]) -> None:
        values = {"ulps": dict(ulps), "substituted": list(substituted)}
        self.note("perturbed", values)

    def _changed_rows(self, key: str, array: Array) -> Values:
        before = self._variables.get(key)
        self._variables[key] = array
        if before is None or before.shape != array.shape or array.size < _MIN_SPARSE_SIZE:
            return {}
        (rows,) = np.nonzero((before != array).reshape(len(array), -1).any(1))
        return {key: array[rows], _ROWS + key: rows}


class StepReader:
    """Reads the files of steps. They must be read in order: each has only the rows that changed."""

    def __init__(self) -> None:
        self._variables: Values = {}

    def read(self, path: pathlib.Path) -> Step:
        values: dict[str, Values] = {}
        stored = read_arrays(path)
        for key, array in stored.items():
            if key.startswith(_ROWS):
                continue
            group, _, name = key.partition(":")
            whole = array
            if _ROWS + key in stored:
                # The rows are copied, because callers still compare with the previous step.
                whole = self._variables[name].copy()
                whole[stored[_ROWS + key]] = array
            if group == VARIABLES:
                self._variables[name] = whole
            values.setdefault(group, {})[name] = whole
        return Step(_number(path), values)


def _fact(name: str, default: Object = None) -> Object:
    return property(lambda self: read_json(self.directory / f"{name}.json", default))


class Recording:
    """Reads the recording that a `RecordingWriter` wrote.

    Attributes:
        replays: the hash of the recording that this recording replays.
        inputs: after how many steps each input of training began.
    """

    failure: str | None = _fact("failed")
    replays: str | None = _fact("replays")
    steps_done: int = _fact("progress", 0)
    follows: bool = _fact("follows", False)
    num_skipped: int = _fact("skipped", 0)
    inputs: Sequence[int] = _fact("inputs", ())
    unlike: Sequence[str] = _fact("unlike", ())

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = pathlib.Path(directory)

    def check(self) -> None:
        """Checks that this version can read the recording, and that the recording is complete.

        Raises:
            InvalidInput: the recording has another version or is incomplete.
        """
        file = self.directory / "format.json"
        stored = read_json(file, {})
        if stored.get("format") != FORMAT:
            raise errors.InvalidInput(
                f"{self.directory} is not a recording: it has no format.json that says so. Give a "
                "folder that `estimator-bridge record` or a Replay has written."
            )
        version = stored.get("version", VERSION)
        if version > VERSION:
            raise errors.InvalidInput(
                f"{self.directory} is a recording of version {version}, and this estimator-bridge "
                f"reads up to version {VERSION}. Install a newer one."
            )
        if not self.is_described or not self.step_files():
            raise errors.InvalidInput(
                f"{self.directory} has no settings or no steps: its writer ended too early. Make "
                "the recording again."
            )

    @property
    def settings(self) -> SideDescription:
        return json.loads((self.directory / "settings.json").read_text())

    @property
    def measured(self) -> Recording | None:
        """Side A's second run, whose initial values differ in the last bit."""
        directory = self.directory / MEASURED
        return Recording(directory) if directory.is_dir() else None

    @property
    def perturbed(self) -> dict[str, int]:
        return read_json(self.directory / "perturbed.json", {}).get("ulps", {})

    @property
    def substituted(self) -> list[str]:
        return read_json(self.directory / "perturbed.json", {}).get("substituted", [])

    def steps(self) -> Iterator[Step]:
        reader = StepReader()
        yield from map(reader.read, self.step_files())

    def step_files(self) -> list[pathlib.Path]:
        return sorted(self.directory.glob("step-*.npz"))

    @property
    def is_described(self) -> bool:
        return (self.directory / "settings.json").exists()

    def batches(self, input_number: int | None = None) -> list[pathlib.Path]:
        prefix = "batch-" if input_number is None else f"batch-{input_number:04d}-"
        return sorted(self.directory.glob(f"{prefix}*"))

    def batch(self, number: int, core: int = 0, cores: int = 1) -> Values | None:
        begun = [(i, step) for i, step in enumerate(self.inputs) if step <= number]
        input_number, first = begun[-1] if begun else (0, 0)
        position = (number - first) * cores + core
        files = self.batches(input_number)[position:] if begun else []
        return read_arrays(files[0]) if files else None

    def exported(self) -> list[pathlib.Path]:
        return sorted(self.directory.glob(f"{EXPORTED}-*"))

    def signatures(self, number: int) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
        """Reads the types of each signature's inputs and outputs, and why signatures failed."""
        stored = read_json(self.directory / f"{SIGNATURES}-{number}.json", {})
        return stored.get("signatures", {}), stored.get("failed", {})

    def gradients(self, position: int) -> Values:
        paths = self.step_files()[position + 1 :][:1]
        prefix = f"{GRADIENTS}:"
        return {
            key.removeprefix(prefix): array
            for path in paths
            for key, array in read_arrays(path).items()
            if key.startswith(prefix)
        }

    @property
    def model_ops(self) -> list[tuple[str, str, str]]:
        return [tuple(op) for op in read_json(self.directory / "model-ops.json", [])]

    def numbers(self) -> list[int]:
        return sorted(map(_number, self.step_files()))

    @property
    def outcomes(self) -> outcome_files.Outcomes:
        return outcome_files.Outcomes(self.directory)


def _number(path: pathlib.Path) -> int:
    return int(path.stem.partition("-")[2])


def is_outside(name: str) -> bool:
    return any(part in name for part in _OUTSIDE)


def parts_of_tables(tables: Collection[TableDescription]) -> dict[str, tuple[str, str | None]]:
    """Maps the name of each variable to its table and slot; for the rows, the slot is None."""
    parts: dict[str, tuple[str, str | None]] = {}
    for table in tables:
        parts[table["variable"]] = table["name"], None
        parts.update({name: (table["name"], slot) for name, slot in table["slots"].items()})
    return parts
