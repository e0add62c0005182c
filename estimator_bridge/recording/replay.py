"""Replays a recording in another framework's training loop, and records the loop's results."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from estimator_bridge import errors
from estimator_bridge.recording.files import (
    ACTIVATIONS,
    GRADIENTS,
    LOSS,
    PORT,
    PREDICTION,
    SUMMED_ROWS,
    VARIABLES,
    RecordedStep,
    Recording,
    RecordingWriter,
    TableDescription,
    Values,
    is_outside,
    parts_of_tables,
    read_arrays,
)
from tf2_engine.types import Array, Object

ROWS = "rows"
"""The key of a table's rows in a dict whose other keys are the names of slots."""
_GLOBAL_STEP = "global_step"
_SAMPLES_OF_CHUNK = 1000
"""The number of predictions in a file; side A's recording has the same number."""
_MAX_SHOWN = 8

Arrays = Mapping[str, Object]
"""Maps names to objects that `numpy.asarray` converts."""


class Bag(NamedTuple):
    """The ids of a feature in a batch, as `torch.nn.functional.embedding_bag` takes them.

    Attributes:
        ids: [n] int64.
        offsets: [cells] int64, where the ids of each cell begin. A cell is one lookup result, of a
            sample or of one position of a sequence.
        weights: [n] float32; None if the feature has no weights.
        shape: (batch,) or, for a sequence, (batch, length); its product is the number of cells.
    """

    ids: Array
    offsets: Array
    weights: Array | None
    shape: tuple[int, ...]


class State(NamedTuple):
    """The variables of a model at one step.

    Attributes:
        tables: maps each table to a dict of arrays [rows, dim]: "rows", and one for each slot.
        dense: maps the names of all other variables to arrays, in side A's layout.
    """

    tables: dict[str, Values]
    dense: Values


@dataclasses.dataclass(frozen=True)
class ReplayBatch:
    """A batch of side A; `arrays` have names such as "features/age" and "labels"."""

    arrays: Values
    tables: Sequence[TableDescription]

    def bag(self, feature: str) -> Bag:
        """Returns the ids of a feature that is looked up in a table.

        Raises:
            InvalidInput: no table has the feature, or its values are not integers.
        """
        known = {key: of for table in self.tables for key, of in table["features"].items()}
        if feature not in known:
            raise errors.InvalidInput(
                f"No table has the feature {feature!r}; the features are {_listed(known)}. Read "
                "other features from `arrays`."
            )
        length, weight_key = known[feature]
        key = f"features/{feature}"
        ids = self.arrays.get(f"{key}.values", self.arrays.get(key))
        is_dense = key in self.arrays
        if ids is None or ids.dtype.kind not in "iu" or (is_dense and length):
            raise errors.InvalidInput(
                f"The batch has no integers for the feature {feature!r}. Read its values from "
                "`arrays`, and look them up as side A's program does."
            )
        if is_dense:
            shape = ids.shape if ids.ndim == 1 else ids.shape[:-1]
            cells = np.repeat(np.arange(np.prod(shape)), ids.size // max(np.prod(shape), 1))
            return _bag(cells, ids.ravel(), None, shape)
        indices, samples = self.arrays[f"{key}.indices"], int(self.arrays[f"{key}.shape"][0])
        if length:
            kept = indices[:, 1] < length
            cells = indices[kept, 0] * length + indices[kept, 1]
            return _bag(cells, ids[kept], None, (samples, length))
        weights = self.arrays.get(f"features/{weight_key}.values") if weight_key else None
        return _bag(indices[:, 0], ids, weights, (samples,))


@dataclasses.dataclass(frozen=True)
class ReplayStep(ReplayBatch):
    """One step of training.

    Attributes:
        number: the global step after this step.
        state: the variables from which to start this step. If it is None (inside a device loop of
            side A), continue from the training loop's own variables.
    """

    number: int
    state: State | None
    replay: Replay

    def record(
        self,
        *,
        loss: Object,
        activations: Arrays,
        gradients: Arrays,
        tables: Mapping[str, Arrays],
        dense: Arrays,
    ) -> None:
        """Records the results that the loop computed in this step, as arrays or numbers.

        Args:
            loss: the loss of the batch, before the update.
            activations: maps each feature to the result of its lookup, [*shape, dim].
            gradients: the gradients of the loss: for activations, keyed by feature, and for
                variables outside the tables, keyed by name.
            tables, dense: the variables after the update, as in `State`.

        Raises:
            InvalidInput: an array is missing or unknown, or its shape differs from side A's.
        """
        variables = {**self.replay.names_of(f"Step {self.number}", tables), **dense}
        values = {
            LOSS: {LOSS: loss},
            ACTIVATIONS: activations,
            GRADIENTS: gradients,
            VARIABLES: variables,
        }
        self.replay.write(self.number, values)


class Replay:
    """Passes a recording (side A) to a training loop step by step, and records the loop's results.

        with Replay("a", "b", program="train.py, PyTorch 2.13") as replay:
            for step in replay:
                model.load(step.state)
                step.record(**model.train(step))

    Every step starts from side A's state, so that rounding does not accumulate.

    Args:
        recording: the folder of side A, as `estimator-bridge record` writes it.
        out: the folder to write; it must not exist.
        program: the name in reports of the program that runs the loop.
        left_out: variables, besides tables, that the loop does not have, such as "beta1_power";
            their gradients are left out as well, and reports say so.

    Raises:
        InvalidInput: the folder contains no recording that can be replayed, or `out` exists.

    Attributes:
        tables: maps each table's name to its description: slots, combiner, features, update rule.
        initial: the state before the first step.
    """

    def __init__(
        self,
        recording: str | os.PathLike[str],
        out: str | os.PathLike[str],
        *,
        program: str = "a training loop",
        left_out: Sequence[str] = (),
    ) -> None:
        self._a = Recording(recording)
        self._a.check()
        self._settings = self._a.settings
        if self._settings["cores"] > 1:
            raise errors.InvalidInput(
                f"{recording} is a recording of {self._settings['cores']} cores, but only one core "
                "can be replayed. Record the program with one core (TPUConfig.num_shards)."
            )
        if os.path.exists(out):
            raise errors.InvalidInput(f"{out} exists already. Name a new folder.")
        self.tables = {table["name"]: table for table in self._settings["tables"]}
        self._steps = self._a.steps()
        self._now = next(self._steps)
        self._left_out = self._checked(left_out)
        self.initial = self._state(self._now)
        self._position = 0
        self._awaited: RecordedStep | None = None
        self._writer = RecordingWriter(out)
        self._begin(program)

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._check_recorded()

    def __iter__(self) -> Iterator[ReplayStep]:
        for step in self._steps:
            self._check_recorded()
            batch = self._a.batch(self._position)
            if batch is None:
                raise errors.InvalidInput(
                    f"{self._a.directory} has no batch of step {step.number}. Make the recording "
                    "again."
                )
            state = self._state(self._now) if VARIABLES in self._now.values else None
            self._position, self._now, self._awaited = self._position + 1, step, step
            tables = self._settings["tables"]
            yield ReplayStep(batch, tables, step.number, state, self)
        self._check_recorded()

    @property
    def final(self) -> State:
        """The state after the last step of the loop, from which predictions start."""
        return self._state(self._now)

    def predictions(self, number: int = 0) -> Iterator[ReplayBatch]:
        """Yields the batches of side A's `predict` call with this index (counted from 0).

        Pass the model's outputs for these batches to `record_predictions`.
        """
        for path in self._a.outcomes.batches(f"{PREDICTION}-{number}"):
            yield ReplayBatch(read_arrays(path), self._settings["tables"])

    def record_predictions(self, outputs: Sequence[Arrays]) -> None:
        """Records the predictions of one call, one dict per batch, keyed by side A's output names.

        Predictions that side A's program did not read are dropped.

        Raises:
            InvalidInput: an output is missing or unknown, or its shape differs from side A's.
        """
        name = self._writer.outcomes.begin(PREDICTION)
        theirs = next(self._a.outcomes.chunks(name), None)
        if theirs is None:
            raise errors.InvalidInput(
                f"{self._a.directory} has no {name}. Do not call `record_predictions`."
            )
        samples = int(self._a.outcomes.about(name).get("samples", 0))
        given = {key for batch in outputs for key in batch}
        _check_names(name, given, theirs)
        arrays = {
            key: np.concatenate([np.asarray(batch[key]) for batch in outputs])[:samples]
            for key in theirs
        }
        cast = {
            key: _like(f"{name}, output {key!r}", array, theirs[key][:1], open_rows=True)
            for key, array in arrays.items()
        }
        for chunk, begin in enumerate(range(0, samples, _SAMPLES_OF_CHUNK)):
            end = begin + _SAMPLES_OF_CHUNK
            self._writer.outcomes.chunk(name, chunk, {k: v[begin:end] for k, v in cast.items()})
        self._writer.outcomes.about(name, {"replayed": True, "samples": samples})

    def names_of(self, where: str, tables: Mapping[str, Arrays]) -> dict[str, Object]:
        _check_names(where, {*tables}, self.tables, "table")
        named: dict[str, Object] = {}
        for name, table in self.tables.items():
            names = {ROWS: table["variable"], **{slot: v for v, slot in table["slots"].items()}}
            _check_names(f"{where}, table {name!r}", {*tables[name]}, names, "part")
            named |= {names[part]: value for part, value in tables[name].items()}
        return named

    def write(self, number: int, values: Mapping[str, Arrays]) -> None:
        expected = self._awaited
        if expected is None or expected.number != number:
            raise errors.InvalidInput(
                f"Step {number} was recorded already, or is not the latest step. Record each step "
                "once, before the next step begins."
            )
        checked: dict[str, Values] = {}
        for group, theirs in expected.values.items():
            wanted = {
                name: array
                for name, array in theirs.items()
                if name not in self._left_out
                and not name.endswith(SUMMED_ROWS)
                and not is_outside(name)
            }
            given = dict(values.get(group, {}))
            if group == GRADIENTS:
                # TensorFlow computes no gradient of an activation that the loss does not use.
                unused = expected.values.get(ACTIVATIONS, {}).items()
                wanted |= {n: np.zeros_like(a) for n, a in unused if n in given and n not in wanted}
            if group == VARIABLES and _GLOBAL_STEP in wanted:
                given[_GLOBAL_STEP] = np.asarray(number, theirs[_GLOBAL_STEP].dtype)
            where = f"Step {number}"
            _check_names(where, {*given}, wanted, group)
            checked[group] = {}
            for name, array in wanted.items():
                rows = theirs.get(name + SUMMED_ROWS)
                checked[group] |= _gradient(where, name, given[name], array, rows)
        self._writer.step(number, checked)
        self._writer.note("progress", self._position)
        self._awaited = None

    def _begin(self, program: str) -> None:
        self._writer.note(
            "settings",
            {
                **self._settings,
                "program": program,
                "side": PORT,
                "engine": PORT,
                "tensorflow": "none",
                "where": program,
                "settings": [],
                "config": {},
                "computed": sorted(self._left_out),
            },
        )
        self._writer.note("follows", True)
        self._writer.note("replays", identity(self._a))
        start = self._now.values[VARIABLES]
        kept = {n: a for n, a in start.items() if n not in self._left_out and not is_outside(n)}
        self._writer.step(self._now.number, {VARIABLES: kept})

    def _state(self, step: RecordedStep) -> State:
        # The arrays are copied, because a loop may change them in place.
        variables = {name: array.copy() for name, array in step.values[VARIABLES].items()}
        tables = {
            name: {
                ROWS: variables[table["variable"]],
                **{slot: variables[each] for each, slot in table["slots"].items()},
            }
            for name, table in self.tables.items()
        }
        known = {*parts_of_tables(self.tables.values()), _GLOBAL_STEP, *self._left_out}
        dense = {n: a for n, a in variables.items() if n not in known and not is_outside(n)}
        return State(tables, dense)

    def _checked(self, left_out: Sequence[str]) -> set[str]:
        every = {name for name in self._now.values[VARIABLES] if not is_outside(name)}
        known = every - {*parts_of_tables(self.tables.values()), _GLOBAL_STEP}
        for name in left_out:
            if name not in known:
                raise errors.InvalidInput(
                    f"left_out: {name!r} is not a variable outside the tables. The variables "
                    f"outside the tables are {_listed(known)}."
                )
        return {*left_out}

    def _check_recorded(self) -> None:
        if self._awaited is not None:
            raise errors.InvalidInput(
                f"Step {self._awaited.number} was not recorded: call its `record` before the next "
                "step begins."
            )


def identity(recording: Recording) -> str:
    files = [recording.directory / "settings.json", *recording.step_files()[:2]]
    hashed = hashlib.sha256()
    for file in files:
        hashed.update(file.read_bytes())
    return hashed.hexdigest()


def _bag(cells: Array, ids: Array, weights: Array | None, shape: tuple[int, ...]) -> Bag:
    order = np.argsort(cells, kind="stable")
    offsets = np.searchsorted(cells[order], np.arange(np.prod(shape)))
    of_ids = None if weights is None else weights[order].astype(np.float32)
    return Bag(ids[order].astype(np.int64), offsets.astype(np.int64), of_ids, shape)


def _check_names(
    where: str, given: set[str], wanted: Mapping[str, object], what: str = "array"
) -> None:
    what = {VARIABLES: "variable", GRADIENTS: "gradient", ACTIVATIONS: "activation"}.get(what, what)
    missing, unknown = wanted.keys() - given, given - wanted.keys()
    if missing:
        way_out = " Or name it in Replay(left_out=[...])." if what == "variable" else ""
        raise errors.InvalidInput(
            f"{where} lacks the {what} {_listed(missing)}. Pass it under the name that side A "
            f"uses.{way_out}"
        )
    if unknown:
        raise errors.InvalidInput(
            f"{where} has the {what} {_listed(unknown)}, which side A lacks; side A has "
            f"{_listed(wanted)}."
        )


def _gradient(where: str, name: str, value: Object, theirs: Array, rows: Array | None) -> Values:
    if rows is None:
        return {name: _like(f"{where}, {name}", np.asarray(value), theirs)}
    whole = np.asarray(value)
    touched = np.flatnonzero(whole.reshape(len(whole), -1).any(1))
    every = np.union1d(rows, touched).astype(rows.dtype)
    like = _like(f"{where}, {name}", whole[every], theirs, open_rows=True)
    return {name: like, name + SUMMED_ROWS: every}


def _like(where: str, array: Array, theirs: Array, *, open_rows: bool = False) -> Array:
    shapes = array.shape, theirs.shape
    if open_rows:
        shapes = array.shape[1:], theirs.shape[1:]
    if shapes[0] != shapes[1]:
        hint = ""
        if array.ndim == 2 and array.shape[::-1] == theirs.shape:
            hint = " Give its transpose: PyTorch's Linear keeps a weight as [out, in]."
        raise errors.InvalidInput(
            f"{where}: the shape is {list(shapes[0])}, but side A's is {list(shapes[1])}.{hint}"
        )
    is_float = [each.dtype.kind in "fV" for each in (array, theirs)]
    if is_float[0] != is_float[1] or array.dtype == object:
        raise errors.InvalidInput(
            f"{where}: the type is {array.dtype.name}, but side A's is {theirs.dtype.name}."
        )
    return array.astype(theirs.dtype)


def _listed(names: Mapping[str, object] | set[str]) -> str:
    shown = sorted(names)
    more = f" and {len(shown) - _MAX_SHOWN} more" if len(shown) > _MAX_SHOWN else ""
    return ", ".join(map(repr, shown[:_MAX_SHOWN])) + more
