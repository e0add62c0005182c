"""Runs stock's TPUEmbeddingV2 on the software SparseCores, our engine, and a float64 reference."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import tensorflow as tf

import tf2_engine
from compat_tests.references import sparsecore
from compat_tests.references.inputs import Occurrence
from compat_tests.references.lookup import combine
from compat_tests.references.training import ReferenceTable, contributions
from compat_tests.support import fake_tpu
from tf2_engine.backends.sparsecore import SparseCoreDriver
from tf2_engine.soft_tpu import SoftTPUStrategy
from tf2_engine.sparsecore_limits import SparseCoreLimits

Array = npt.NDArray[np.float32]
RATE = 0.125

_ADAM = {"beta_1": 0.75, "beta_2": 0.875, "epsilon": 0.125}
_FTRL = {
    "initial_accumulator_value": 0.25,
    "l1_regularization_strength": 0.0625,
    "l2_regularization_strength": 0.03125,
    "beta": 0.125,
}
_ARGUMENTS: dict[str, dict[str, Any]] = {
    "SGD": {},
    "Adagrad": {"initial_accumulator_value": 0.25},
    "AdagradMomentum": {
        **{"momentum": 0.75, "use_nesterov": True, "exponent": 3.0, "beta2": 0.875},
        "epsilon": 0.125,
    },
    "AdagradMomentum, plain sums": {
        **{"momentum": 0.5, "use_nesterov": False, "exponent": 2.0, "beta2": 1.0},
        "epsilon": 0.25,
    },
    "Adam": {**_ADAM, "sum_inside_sqrt": True},
    "Adam, sum outside": {**_ADAM, "sum_inside_sqrt": False},
    "FTRL": {**_FTRL, "multiply_linear_by_learning_rate": False},
    "FTRL, times the rate": {**_FTRL, "multiply_linear_by_learning_rate": True},
}
_OF_REFERENCE_ALONE = {"Adam": {"lazy_adam": 1}, "FTRL": {"learning_rate_power": -0.5}}


def _with_settings(name: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    kind, arguments = name.partition(",")[0], _ARGUMENTS[name]
    settings = {
        key.replace("beta2", "beta_2"): int(value) if isinstance(value, bool) else value
        for key, value in arguments.items()
    }
    return kind, arguments, {**settings, **_OF_REFERENCE_ALONE.get(kind, {})}


OPTIMIZERS = {name: _with_settings(name) for name in _ARGUMENTS}
"""Maps a name to the class, stock's arguments and the reference's; all are exact in float32."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A model with three tables, and its batches.

    Tables `a` and `b` have the same padded width, and share a stack if `stacked`. The width of `c`
    is different.
    """

    optimizer: str = "Adagrad"
    combiners: tuple[str, str] = ("mean", "sqrtn")
    weighted: bool = True
    stacked: bool = True
    cores: int = 1
    sparse_cores: int = 4
    steps: int = 3

    ROWS: ClassVar = {"a": 10, "b": 7, "c": 21}
    DIMS: ClassVar = {"a": 6, "b": 6, "c": 9}

    def __str__(self) -> str:
        words = [self.optimizer, "+".join(self.combiners), f"{self.cores}x{self.sparse_cores}"]
        words += ["weighted"] * self.weighted + ["unstacked"] * (not self.stacked)
        return " ".join(words)

    @property
    def features(self) -> dict[str, tuple[str, str, int]]:
        """Maps each feature to its table, its kind of ids and its number of samples."""
        s = self.sparse_cores
        return {
            "dense": ("b", "dense", 2 * s),
            "more": ("c", "ragged", 4 * s),
            "ragged": ("a", "ragged", 3 * s),
            "sparse": ("a", "sparse", 2 * s),
        }

    @property
    def numbers(self) -> str:
        words = [self.optimizer, "+".join(self.combiners), f"{self.cores} cores"]
        return " ".join(words + ["weighted"] * self.weighted)

    def combiner(self, table: str) -> str:
        return self.combiners[table == "b"]

    def initial(self, table: str) -> Array:
        rows, dim = self.ROWS[table], self.DIMS[table]
        return np.random.default_rng(ord(table)).normal(size=(rows, dim)).astype(np.float32)


class Batch(dict[str, list[Occurrence]]):
    """The occurrences of each feature on one core."""

    def __init__(self, case: Case, occurrences: Mapping[str, list[Occurrence]]) -> None:
        super().__init__(occurrences)
        self._features = case.features

    @functools.cached_property
    def tensors(self) -> tuple[dict[str, Any], dict[str, Any]]:
        both = {
            feature: as_tensors(kind, samples, self[feature])
            for feature, (_, kind, samples) in self._features.items()
        }
        ids, weights = ({f: pair[i] for f, pair in both.items()} for i in (0, 1))
        return ids, weights


Step = tuple[list[Batch], list[dict[str, Array]]]
"""The occurrences of each core by feature, and the gradients of each core by feature."""


def batches(case: Case) -> list[Step]:
    """Creates the steps of a case, which depend only on its weights, cores and SparseCores."""
    return _batches(dataclasses.replace(case, optimizer="", combiners=("", ""), stacked=True))


@functools.lru_cache(maxsize=8)
def _batches(case: Case, seed: int = 3) -> list[Step]:
    rng = np.random.default_rng(seed)

    def occurrences(table: str, kind: str, samples: int) -> list[Occurrence]:
        counts = np.ones(samples, int) if kind == "dense" else rng.integers(0, 5, samples)
        weighted = case.weighted and kind != "dense"
        weights = rng.integers(2, 16, counts.sum()) / 8 if weighted else np.ones(counts.sum())
        ids = rng.integers(0, case.ROWS[table], counts.sum())
        cells = np.repeat(np.arange(samples), counts)
        return [
            Occurrence(int(c), int(i), float(w))
            for c, i, w in zip(cells, ids, weights, strict=True)
        ]

    def step() -> Step:
        ids = [
            Batch(case, {name: occurrences(*of) for name, of in case.features.items()})
            for _ in range(case.cores)
        ]
        gradients = [
            {
                name: rng.normal(size=(samples, case.DIMS[table])).astype(np.float32)
                for name, (table, _, samples) in case.features.items()
            }
            for _ in range(case.cores)
        ]
        return ids, gradients

    return [step() for _ in range(case.steps)]


@dataclasses.dataclass
class Results:
    """Activations by step, core and feature; parameters and slots by table."""

    activations: list[list[dict[str, Any]]]
    tables: dict[str, dict[str, Any]]


def reference(case: Case) -> Results:
    """Computes the results of a case in float64."""
    name, _, settings = OPTIMIZERS[case.optimizer]
    tables = {table: ReferenceTable(case.initial(table), name, settings) for table in case.ROWS}
    activations = []
    for ids, gradients in batches(case):
        of_step: list[dict[str, Any]] = []
        sent: dict[str, Any] = {table: ([], {}) for table in tables}
        for core in range(case.cores):
            of_core = {}
            for number, (feature, (table, _, samples)) in enumerate(case.features.items()):
                occurrences = ids[core][feature]
                of_core[feature], gains = combine(
                    tables[table].weights, occurrences, samples, case.combiner(table)
                )
                sent[table][0].extend(contributions(core, number, occurrences, gains))
                sent[table][1][core, number] = gradients[core][feature]
            of_step.append(of_core)
        activations.append(of_step)
        for table, (batch, of_table) in sent.items():
            tables[table].apply(batch, of_table, RATE, num_cores=case.cores)
    return Results(
        activations,
        {name: {"parameters": table.weights, **table.slots} for name, table in tables.items()},
    )


class Stock:
    """Stock's TPUEmbeddingV2 for cases, on new software SparseCores.

    Several cases have the same cores, weights and stacking, and get the same batches. The names of
    their tables and features then end with the number of the case.
    """

    def __init__(self, *cases: Case, **strategy: Any) -> None:
        self.case, self.cases = cases[0], by_ending(cases)
        self.strategy = SoftTPUStrategy(
            self.case.cores,
            hardware="sparsecore",
            sparse_cores=self.case.sparse_cores,
            **strategy,
        )
        self.step = tf.function(self._step)
        with self.strategy.scope():
            self.embedding = self.make()
            self.embedding.build()

    def make(self) -> Any:
        """Creates the embedding without building it."""
        emb = tf.tpu.experimental.embedding
        self.tables, features = {}, {}
        for end, case in self.cases.items():
            name, arguments, _ = OPTIMIZERS[case.optimizer]
            for table, rows in case.ROWS.items():
                self.tables[table + end] = emb.TableConfig(
                    rows,
                    case.DIMS[table],
                    initializer=tf.zeros_initializer(),
                    optimizer=getattr(emb, name)(RATE, **arguments),
                    combiner=case.combiner(table),
                    name=table + end,
                )
            for feature, (table, _, samples) in case.features.items():
                features[feature + end] = emb.FeatureConfig(
                    self.tables[table + end], output_shape=[samples], name=feature
                )
        config = emb.SparseCoreEmbeddingConfig(disable_table_stacking=not self.case.stacked)
        return emb.TPUEmbeddingV2(features, sparse_core_embedding_config=config)

    def of_all(self, of_one: Mapping[str, Any]) -> dict[str, Any]:
        return {name + end: value for end in self.cases for name, value in of_one.items()}

    def fill(self) -> None:
        """Assigns the cases' initial rows to the tables. Padding keeps its values."""
        for name in self.tables:
            self.write(name, "parameters", self.case.initial(name[0]))

    def _step(self, ids: Any, weights: Any, gradients: Any) -> Any:
        def replica(ids: Any, weights: Any, gradients: Any) -> Any:
            activations, preserved = self.embedding(self.of_all(ids), self.of_all(weights))
            self.embedding.apply_gradients(self.of_all(gradients), preserved)
            return activations

        return self.strategy.run(replica, args=(ids, weights, gradients))

    def train(self, steps: Sequence[Step]) -> Results:
        """Trains on steps from `batches`."""
        activations = []
        for step in steps:
            outputs = self.step(*self.arguments(step))
            local = {
                name: self.strategy.experimental_local_results(value)
                for name, value in outputs.items()
            }
            activations.append(
                [
                    {name: values[core].numpy() for name, values in local.items()}
                    for core in range(self.case.cores)
                ]
            )
        return Results(activations, {table: self.read(table) for table in self.tables})

    def arguments(self, step: Step) -> list[Any]:
        """Converts a step from `batches` to distributed ids, weights and gradients by feature."""
        ids, gradients = step
        inputs = [batch.tensors for batch in ids]
        sent = [{name: tf.constant(value) for name, value in each.items()} for each in gradients]
        parts = [ids for ids, _ in inputs], [weights for _, weights in inputs], sent
        return [fake_tpu.distribute(self.strategy, part) for part in parts]

    def read(self, table: str) -> dict[str, Array]:
        """Returns parameters and slots of a table, [rows, dim] each."""
        places = self.places(table)
        stack = self.embedding.embedding_layouts[table].stacked_table_name
        dim = self.case.DIMS[table[0]]  # The tables of a group end with a number.
        parts = {
            name: [part.numpy() for part in variable.values]
            for name, variable in self.embedding.variables[stack].items()
        }
        return {
            name: np.stack([of_cores[place.core][place.row, :dim] for place in places])
            for name, of_cores in parts.items()
        }

    def write(self, table: str, name: str, rows: Array) -> None:
        stack = self.embedding.embedding_layouts[table].stacked_table_name
        variables = self.embedding.variables[stack][name].values
        parts = [variable.numpy() for variable in variables]
        for row, place in zip(rows, self.places(table), strict=True):
            parts[place.core][place.row, : len(row)] = row
        for variable, part in zip(variables, parts, strict=True):
            variable.assign(part)

    def places(self, table: str) -> list[sparsecore.Place]:
        """Locates a table's rows. Tables of the same optimizer and width form a stack."""
        base, end = table[0], table[1:]
        tables = [table]
        if self.case.stacked:
            optimizer = self.cases[end].optimizer
            same = [e for e, case in self.cases.items() if case.optimizer == optimizer]
            tables = [f"{each}{e}" for each in ("ab" if base in "ab" else "c") for e in same]
        rows = {name: self.case.ROWS[name[0]] for name in tables}
        stack = sparsecore.stack(rows, self.case.cores, self.case.sparse_cores)[table]
        return [stack.place(row) for row in range(rows[table])]


def by_ending(cases: Sequence[Case]) -> dict[str, Case]:
    """Maps the ends of names in the model of all cases to the cases: "" if there is only one."""
    return {str(number) if len(cases) > 1 else "": case for number, case in enumerate(cases)}


def spec(*cases: Case) -> tf2_engine.EngineSpec:
    """Returns the tables and features of all cases as one spec."""
    tables, features = [], []
    for end, case in by_ending(cases).items():
        name, arguments, _ = OPTIMIZERS[case.optimizer]
        optimizer = getattr(tf2_engine, name)(RATE, **arguments)
        for table, rows in case.ROWS.items():
            dim, combiner = case.DIMS[table], case.combiner(table)
            tables.append(tf2_engine.TableSpec(table + end, rows, dim, combiner, optimizer))
        for feature, (table, _, samples) in case.features.items():
            features.append(
                tf2_engine.FeatureSpec(feature + end, table + end, output_shape=(samples,))
            )
    return tf2_engine.EngineSpec(tuple(tables), tuple(features))


def as_tensors(kind: str, samples: int, occurrences: Sequence[Occurrence]) -> tuple[Any, Any]:
    """Converts occurrences to tensors of ids and weights of a kind."""
    cells, ids, weights = np.array(occurrences, np.float64).reshape(-1, 3).T
    cells = cells.astype(np.int64)
    build: Callable[[Any], Any]
    if kind == "dense":
        build = tf.constant
    elif kind == "ragged":
        splits = np.searchsorted(cells, np.arange(samples + 1)).astype(np.int64)

        def build(values: Any) -> Any:
            return tf.RaggedTensor.from_row_splits(values, splits, validate=False)

    else:
        position = np.concatenate([np.arange(0), *(np.arange(n) for n in np.bincount(cells))])
        where = np.stack([cells, position], 1).astype(np.int64)

        def build(values: Any) -> Any:
            return tf.SparseTensor(where, values, [samples, 8])

    return build(ids.astype(np.int64)), build(weights.astype(np.float32))


class Engine(Stock):
    """Our engine for cases, with the methods of `Stock`."""

    def make(self) -> Any:
        engine_spec = spec(*self.cases.values())
        self.tables = dict.fromkeys(table.name for table in engine_spec.tables)
        limits = SparseCoreLimits(disable_table_stacking=not self.case.stacked)
        return tf2_engine.TPUEmbedding(engine_spec, driver=SparseCoreDriver(limits))

    def _step(self, ids: Any, weights: Any, gradients: Any) -> Any:
        def replica(ids: Any, weights: Any, gradients: Any) -> Any:
            # Our dense ids have no weights; stock's have weights of 1.
            self.embedding.enqueue(self.of_all(ids), self.of_all({**weights, "dense": None}))
            activations = self.embedding.dequeue()
            self.embedding.apply_gradients(self.of_all(gradients))
            return activations

        return self.strategy.run(replica, args=(ids, weights, gradients))

    def read(self, table: str) -> dict[str, Array]:
        """Returns parameters and slots of a table, [rows, dim] each."""
        self.embedding.retrieve()
        variables = self.embedding.tables[table].variables
        return {name: shards[0].numpy() for name, shards in variables.items()}

    def write(self, table: str, name: str, rows: Array) -> None:
        self.embedding.tables[table].variables[name][0].assign(rows)
        self.embedding.load()


def assert_same_bits(expected: Results, actual: Results) -> None:
    """Asserts that all activations, rows and slots are bitwise equal."""
    steps = zip(expected.activations, actual.activations, strict=True)
    for step, (theirs, ours) in enumerate(steps):
        for core, features in enumerate(theirs):
            for name, values in features.items():
                what = f"step {step} core {core} feature {name}"
                np.testing.assert_array_equal(ours[core][name], values, what)
    for table, variables in expected.tables.items():
        assert set(actual.tables[table]) == set(variables)
        for name, values in variables.items():
            np.testing.assert_array_equal(actual.tables[table][name], values, f"{name} of {table}")
