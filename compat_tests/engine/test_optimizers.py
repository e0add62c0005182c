"""Many sparse steps of every optimizer with all common settings follow the references."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cases import optimizers as cases
from compat_tests.cases import places
from compat_tests.cases.optimizers import Combination, OptimizerCase, SparseIds
from compat_tests.conftest import Array, Engine, Runner
from compat_tests.references.inputs import sparse
from compat_tests.references.tolerance import assert_close
from compat_tests.references.training import Lookup, assert_step
from tf2_engine import (
    FTRL,
    OPTIMIZERS,
    Adagrad,
    EngineSpec,
    FeatureSpec,
    FrequencyEstimator,
    Optimizer,
    TableSpec,
    errors,
)


class Record(NamedTuple):
    """What an engine did.

    Attributes:
        tables: before the first step and after each, the arrays by table and kind.
        activations: of each step, per core, by feature.
    """

    tables: list[dict[str, dict[str, Array]]]
    activations: list[list[dict[str, Array]]]


def together(combinations: list[Combination], *also: str) -> Iterator[Any]:
    return places(combinations, "mode", "cores", "driver", *also)


QUICK_STEPS = 10


@pytest.mark.parametrize("group, place", together(cases.quick()))
def test_rows_follow_the_reference(group: tuple[Combination, ...], place: int) -> None:
    """After each of ten sparse steps every row and slot is where the reference has it."""
    check(group, place, QUICK_STEPS)


@pytest.mark.full
@pytest.mark.parametrize("group, place", together(cases.full(), "kind"))
def test_rows_follow_the_reference_under_all_settings(
    group: tuple[Combination, ...], place: int
) -> None:
    """After each of thirty they are, in every combination of settings, not just every pair."""
    check(group, place)


def check(group: tuple[Combination, ...], place: int, count: int = cases.NUM_STEPS) -> None:
    follow(train(group, count=count), group[place], place, count)


def follow(record: Record, combination: Combination, place: int, count: int) -> None:
    """Compares the activations, rows and slots of one table with the reference, step by step.

    Once against a reference that starts anew from the engine's rows before each step, and once
    against one that runs along from the beginning.
    """
    name, case, common = table_name(place), combination.case, combination.common
    whole = case.reference_of({"parameters": cases.initial_weights(case, place)}, common)
    for kind, values in {"parameters": whole.weights, **whole.slots}.items():
        np.testing.assert_array_equal(
            record.tables[0][name][kind], values.astype(np.float32), f"{combination}, start, {kind}"
        )

    for number, step in enumerate(cases.steps(case, place, combination.cores, count)):
        before, after = record.tables[number][name], record.tables[number + 1][name]
        where = f"{combination.optimizer}, step {number} ({combination})"
        single = case.reference_of(before, common)
        assert_step(
            [single, whole],
            [
                Lookup(
                    core,
                    position,
                    sparse(sparse_ids.indices, sparse_ids.ids, sparse_ids.weights),
                    record.activations[number][core][f"{name}_{feature}"],
                    step.gradients[core][feature],
                )
                for core, of_features in enumerate(step.inputs)
                for position, (feature, sparse_ids) in enumerate(of_features.items())
            ],
            after,
            combination.rate_at(place, number),
            where,
            **case.looked_up(before["parameters"]),
            n_terms=cases.MOST_IDS,
            combiner=combination.combiner,
            num_cores=combination.cores,
        )
        untouched = single.updates_of_row == 0
        for kind, values in after.items():
            np.testing.assert_array_equal(
                values[untouched], before[kind][untouched], f"{where}, untouched rows, {kind}"
            )


@functools.lru_cache(maxsize=1)
def train(
    group: tuple[Combination, ...], driver: str | None = None, count: int = cases.NUM_STEPS
) -> Record:
    """Trains one table per combination, all in one engine, for some steps.

    In the mode "two functions" one tf.function enqueues, and another one does the rest of a step.

    Args:
        driver: instead of that of the combinations.
    """
    mode, cores, driver = group[0].mode, group[0].cores, driver or group[0].driver
    split = mode == "two functions"
    runner = Runner("function" if split else mode)
    with runner.scope():
        step_variable = tf.Variable(0.0, name="step")
    spec = spec_of(group, step_variable)
    engine = Engine(runner, spec, driver=driver, split=split, num_cores=cores)
    engine.build_for([(cases.BATCH,)] * (len(group) * len(cases.FEATURES)))

    record = Record([engine.read()], [])
    batches = zip(
        *(cases.steps(row.case, place, cores, count) for place, row in enumerate(group)),
        strict=True,
    )
    for number, of_tables in enumerate(batches):
        runner.write(step_variable, float(number))
        features, weights, gradients = as_tensors(of_tables, cores)
        record.activations.append(engine.train(features, weights, gradients))
        record.tables.append(engine.read())
    return record


def spec_of(group: tuple[Combination, ...], step: tf.Variable) -> EngineSpec:
    """Returns the spec with one table per combination and two features for each."""
    tables = tuple(
        TableSpec(
            table_name(place),
            cases.ROWS,
            combination.case.dim,
            combination.combiner,
            OPTIMIZERS[combination.case.kind](
                learning_rate=rate_of(combination, place, step),
                **combination.case.settings,
                **combination.common,
            ),
            initial(combination.case, place),
        )
        for place, combination in enumerate(group)
    )
    features = tuple(
        FeatureSpec(f"{table.name}_{feature}", str(table.name))
        for table in tables
        for feature in cases.FEATURES
    )
    return EngineSpec(tables, features)


def rate_of(combination: Combination, place: int, step: tf.Variable) -> float | Callable[[], Any]:
    """Returns a constant rate, or a callable that reads the step."""
    if combination.case.rate_is_step:
        return lambda: step + 1.0
    if combination.rate == "dynamic rate":
        return lambda: cases.first_rate(place) / (1.0 + step)
    return combination.rate_at(place, 0)


def initial(case: OptimizerCase, place: int) -> Callable[..., Any]:
    """Returns an initializer with the first weights of a table."""
    return lambda shape, dtype: tf.constant(cases.initial_weights(case, place), dtype, shape)


def table_name(place: int) -> str:
    return f"table{place}"


def as_tensors(
    of_tables: tuple[cases.Step, ...], cores: int
) -> tuple[list[Any], list[Any], list[Any]]:
    """Returns features, weights and gradients per core, as an engine takes them."""
    features: list[dict[str, Any]] = [{} for _ in range(cores)]
    weights: list[dict[str, Any]] = [{} for _ in range(cores)]
    gradients: list[dict[str, Any]] = [{} for _ in range(cores)]
    for place, step in enumerate(of_tables):
        for core in range(cores):
            for feature, sparse_ids in step.inputs[core].items():
                name = f"{table_name(place)}_{feature}"
                features[core][name] = sparse_tensor(sparse_ids, sparse_ids.ids)
                weights[core][name] = sparse_tensor(sparse_ids, sparse_ids.weights)
                gradients[core][name] = tf.constant(step.gradients[core][feature])
    return features, weights, gradients


def sparse_tensor(sparse_ids: SparseIds, values: Any) -> tf.SparseTensor | None:
    """Returns `values` at the places of the ids, if there are any values."""
    if values is None:
        return None
    return tf.SparseTensor(sparse_ids.indices, values, [cases.BATCH, cases.MOST_IDS])


@pytest.mark.parametrize("mode", cases.MODES)
def test_colliding_ids_are_applied_core_by_core(mode: str) -> None:
    """Without accumulation two cores give the numbers of TensorFlow's own two-core test.

    The test of the same name in meta/test_training.py tells the case, and works the numbers out.
    """
    optimizer = Adagrad(0.12, use_gradient_accumulation=False, initial_accumulator_value=0.1)
    zeros = tf.zeros_initializer()
    spec = EngineSpec(
        (TableSpec("table", 8, 3, "mean", optimizer, zeros),), (FeatureSpec("ids", "table"),)
    )
    engine = Engine(Runner(mode), spec, num_cores=2)
    indices = [[0, 0], [0, 1], [1, 0], [1, 1]]
    features = [
        {"ids": tf.SparseTensor(indices, tf.constant(ids, tf.int64), [2, 2])}
        for ids in ([0, 1, 1, 2], [1, 2, 2, 3])
    ]
    gradients = [
        {"ids": tf.constant(rows)} for rows in ([[3.0] * 3, [2.0] * 3], [[1.0] * 3, [0.0] * 3])
    ]

    engine.train(features, None, gradients)

    assert_collided(engine.read()["table"], mode)


def assert_collided(held: dict[str, Array], where: str) -> None:
    """Compares a table with the numbers of the test above."""
    expected = {
        "parameters": [-0.1174190, -0.2181933, -0.1660553, 0, 0, 0, 0, 0],
        "accumulators": [2.35, 6.6, 1.35, 0.1, 0.1, 0.1, 0.1, 0.1],
    }
    for kind, values in held.items():
        column = np.repeat(np.array(expected[kind])[:, None], 3, 1)
        assert_close(column, values, n_terms=3, steps=2, where=f"{where}, {kind}")


# What is particular to one optimizer.


def engine_of(optimizer: Optimizer, first: float | None = None, mode: str = "eager") -> Engine:
    """Returns an engine with a table "hits" of 4 rows and 1 column, and a feature "ids".

    Args:
        first: what rows start with; None gives the table no initializer.
    """
    initializer = None if first is None else tf.constant_initializer(first)
    table = TableSpec("hits", 4, 1, "sum", optimizer, initializer)
    return Engine(Runner(mode), EngineSpec((table,), (FeatureSpec("ids", "hits"),)))


def train_rows(engine: Engine, **gradients: float) -> Any:
    """Trains rows, `r0` and so on, by the gradients given; returns their activations."""
    ids = tf.constant([int(name[1:]) for name in gradients], tf.int64)
    sent = tf.constant([[gradient] for gradient in gradients.values()], tf.float32)
    return engine.train([{"ids": ids}], None, [{"ids": sent}])[0]["ids"][:, 0]


@pytest.mark.parametrize("times_rate", [False, True])
def test_ftrl_starts_from_accumulators_of_zero(times_rate: bool) -> None:
    """A first gradient of g moves a weight by lr * g / |g|; one of zero leaves no NaN, but zero.

    By hand, for a weight of 0.25, a gradient of 2 and a rate of 0.5: the accumulator is 4 and its
    root 2; z is 2 - 2 * 0.25 / 0.5 = 1, or 0.5 when it is times the rate; the new weight is
    -1 / (2 / 0.5), or -0.5 / 2.
    """
    optimizer = FTRL(
        0.5, initial_accumulator_value=0.0, multiply_linear_by_learning_rate=times_rate
    )
    engine = engine_of(optimizer, 0.25)

    train_rows(engine, r0=0.0, r1=2.0)

    column = {kind: values[:3, 0].tolist() for kind, values in engine.read()["hits"].items()}
    assert column == {
        "parameters": [0.0, -0.25, 0.25],
        "accumulators": [0.0, 4.0, 0.0],
        "linears": [0.0, 0.5 if times_rate else 1.0, 0.0],
    }


ESTIMATOR = {"tau": 0.5, "max_delta": 8.0, "outlier_threshold": 2.0, "weight_exponent": 0.5}


def test_a_frequency_has_one_column() -> None:
    """A table that is wider than its optimizer can have is refused by name."""
    with pytest.raises(errors.InvalidSpec, match=r"'hits'.*`FrequencyEstimator`.*must be 1, got 2"):
        TableSpec("hits", 4, 2, optimizer=FrequencyEstimator(lambda: 1.0, **ESTIMATOR))
