"""Reads and writes the files of a recording, which docs/recording.md describes."""

from __future__ import annotations

import collections
import json
import os
import pathlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, TypedDict

import numpy as np

from estimator_bridge import errors
from estimator_bridge.recording.array_files import Values, read_arrays, write_arrays
from tf2_engine.types import Array, Object

EVALUATION, PREDICTION, EXPORT, SERVED = "evaluation", "prediction", "export", "served"
"""The kinds of outcomes; the kind "served" has the answers of exported models."""
KINDS = (EVALUATION, PREDICTION, EXPORT, SERVED)

SEEN, RECOMPUTED = "seen", "recomputed"
"""Parts of an evaluation: the inputs of its metrics, and metrics recomputed from these inputs."""
OWN, OTHER = "own: ", "other: "
"""Prefixes of metrics that were recomputed: from the side's own inputs, or from side A's."""
METRIC_VARIABLE = "variable: "
"""Prefix of the variables in which the metrics of an evaluation were summed."""
VARIABLES, ACTIVATIONS, GRADIENTS, LOSS = "variables", "activations", "gradients", "loss"
"""The groups of the arrays of a step."""
SUMMED_ROWS = " (rows)"
"""The suffix of the array with a sparse gradient's row numbers, each of which occurs once."""
EXPORTED, SIGNATURES = "exported", "signatures"
MODEL_OPS = "ops"
"""The group with sketches of the values of a model's ops."""
TF2, KERAS, CHECKPOINT, PORT = "tf2", "keras", "checkpoint", "port"
"""What a side can be: a TensorFlow 2 program, a Keras model, a checkpoint, or a `Replay`."""
FORMAT, VERSION = "estimator-bridge recording", 1
"""The name and version of the format. docs/recording.md says when the version changes."""
MEASURED = "perturbed"
"""The folder of side A's second run, in which the last bits of values are changed, if any."""
_OUTSIDE = ("tpu_embedding_dummy_table_variable_", "signal_early_stopping/")
_ROWS = "rows of "
# Smaller arrays are written whole.
_MIN_SPARSE_SIZE = 4096


class About(TypedDict, total=False):
    """An outcome: digests of its variables, how it was made, and the error if it failed."""

    variables: dict[str, str]
    replayed: bool
    unlike: list[str]
    batches: int
    samples: int
    failed: str


class OutcomeWriter:
    """Writes outcomes into the directory of a recording."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        # The number of files written, keyed by kind.
        self._counts: collections.Counter[str] = collections.Counter()
        self._left_out: list[str] = []

    def begin(self, kind: str) -> str:
        self._counts[kind] += 1
        return f"{kind}-{self._counts[kind] - 1}"

    def write(self, name: str, values: Mapping[str, Object], part: str = "") -> None:
        write_arrays(self._directory / f"{f'{part}-' * bool(part)}{name}.npz", values)

    def chunk(self, name: str, number: int, values: Mapping[str, Object]) -> None:
        write_arrays(self._directory / f"{name}{f'+{number:06d}' * bool(number)}.npz", values)

    def about(self, name: str, about: About) -> None:
        write_json(self._directory / f"about-{name}.json", about)

    def batch(self, name: str, input_number: int, values: Mapping[str, Object]) -> None:
        prefix = f"fed-{name}-{input_number:04d}"
        number = self._counts[prefix]
        self._counts[prefix] += 1
        write_arrays(self._directory / f"{prefix}-{number:08d}.npz", values)

    def drop_batch(self, name: str) -> None:
        for path in sorted(self._directory.glob(f"fed-{name}-*.npz"))[-1:]:
            path.unlink()

    def left_out(self, what: str) -> None:
        if what not in self._left_out:
            self._left_out.append(what)
            write_json(self._directory / "left-out.json", self._left_out)


class Outcomes:
    """Reads the outcomes that an `OutcomeWriter` wrote."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory

    @property
    def left_out(self) -> list[str]:
        return list(read_json(self._directory / "left-out.json", []))

    def names(self) -> list[str]:
        return [
            f"{kind}-{number}"
            for kind in KINDS
            for number in sorted(
                int(path.stem.partition("-")[2])
                for path in self._directory.glob(f"{kind}-*.npz")
                if "+" not in path.stem
            )
        ]

    def failed(self) -> dict[str, str]:
        paths = sorted(self._directory.glob("about-*.json"))
        named = {path.stem.removeprefix("about-"): read_json(path, {}) for path in paths}
        return {name: about["failed"] for name, about in named.items() if "failed" in about}

    def chunks(self, name: str) -> Iterator[Values]:
        first = self._directory / f"{name}.npz"
        rest = sorted(self._directory.glob(f"{name}+*.npz"))
        for path in [first] * first.exists() + rest:
            yield read_arrays(path)

    def part(self, name: str, part: str) -> Values:
        path = self._directory / f"{part}-{name}.npz"
        return read_arrays(path) if path.exists() else {}

    def about(self, name: str) -> About:
        return read_json(self._directory / f"about-{name}.json", {})

    def batches(self, name: str, input_number: int | None = None) -> list[pathlib.Path]:
        of_input = "" if input_number is None else f"{input_number:04d}-"
        return sorted(self._directory.glob(f"fed-{name}-{of_input}*.npz"))


def read_json(path: pathlib.Path, default: Object) -> Object:
    return json.loads(path.read_text()) if path.exists() else default


def write_json(path: pathlib.Path, value: object) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value, indent=1))
    partial.replace(path)


class RuleDescription(TypedDict):
    """The update rule of a table; its kind and settings have the engine's names.

    In step i, gradients of activations are multiplied by `multipliers[i]`, or by 1 if there are
    none.
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
        features: maps each feature to its maximum sequence length (or 0) and its weights' key.
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


class RecordedStep(NamedTuple):
    """One step of training: the global step after it, and a dict of arrays for each group."""

    number: int
    values: dict[str, Values]


class RecordingWriter:
    """Writes a recording into a directory that it creates."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = pathlib.Path(directory)
        self.directory.mkdir(parents=True)
        self.note("format", {"format": FORMAT, "version": VERSION})
        self.outcomes = OutcomeWriter(self.directory)
        self._variables: Values = {}
        self._input_starts: list[int] = []
        # The number of files written, keyed by kind.
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
    """Reads step files in order; a file may have only the rows that the step changed."""

    def __init__(self) -> None:
        self._variables: Values = {}

    def read(self, path: pathlib.Path) -> RecordedStep:
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
        return RecordedStep(_number(path), values)


def _fact(name: str, default: Object = None) -> Object:
    return property(lambda self: read_json(self.directory / f"{name}.json", default))


class Recording:
    """Reads the recording that a `RecordingWriter` wrote.

    Attributes:
        replays: the hash of the recording that this recording replays.
        inputs: for each training input, the number of steps before its first batch.
        stopped_before: the `max_steps` of the program, if the recording ends before this step.
    """

    failure: str | None = _fact("failed")
    replays: str | None = _fact("replays")
    steps_done: int = _fact("progress", 0)
    follows: bool = _fact("follows", False)
    num_skipped: int = _fact("skipped", 0)
    inputs: Sequence[int] = _fact("inputs", ())
    unlike: Sequence[str] = _fact("unlike", ())
    stopped_before: int | None = _fact("stopped_before")

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = pathlib.Path(directory)

    def check(self) -> None:
        """Checks the recording.

        Raises:
            InvalidInput: the recording is incomplete, or has a newer version.
        """
        file = self.directory / "format.json"
        stored = read_json(file, {})
        if stored.get("format") != FORMAT:
            raise errors.InvalidInput(
                f"{self.directory} is not a recording: it has no format.json that says so. Give "
                "a folder that `estimator-bridge record` or a Replay has written."
            )
        version = stored.get("version", VERSION)
        if version > VERSION:
            raise errors.InvalidInput(
                f"{self.directory} is a recording of version {version}, but this estimator-bridge "
                f"reads versions up to {VERSION}. Install a newer estimator-bridge."
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
        """Side A's second run, with the last bits of values changed; None if not recorded."""
        directory = self.directory / MEASURED
        return Recording(directory) if directory.is_dir() else None

    @property
    def perturbed(self) -> dict[str, int]:
        return read_json(self.directory / "perturbed.json", {}).get("ulps", {})

    @property
    def substituted(self) -> list[str]:
        return read_json(self.directory / "perturbed.json", {}).get("substituted", [])

    def steps(self) -> Iterator[RecordedStep]:
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
        """Returns the types of each signature's inputs and outputs, and why signatures failed."""
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
    def outcomes(self) -> Outcomes:
        return Outcomes(self.directory)


def _number(path: pathlib.Path) -> int:
    return int(path.stem.partition("-")[2])


def is_outside(name: str) -> bool:
    return any(part in name for part in _OUTSIDE)


def parts_of_tables(tables: Collection[TableDescription]) -> dict[str, tuple[str, str | None]]:
    """Maps each variable to its table and slot; for the rows, the slot is None."""
    parts: dict[str, tuple[str, str | None]] = {}
    for table in tables:
        parts[table["variable"]] = table["name"], None
        parts.update({name: (table["name"], slot) for name, slot in table["slots"].items()})
    return parts
