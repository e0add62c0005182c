"""The statistics of tables equal those of loops over ids in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.references import inputs
from compat_tests.references.lookup import combine
from tf2_engine import FTRL, SGD, Adagrad, EngineSpec, FeatureSpec, TableSpec, TPUEmbedding, errors
from tf2_engine.batch import FeatureBatch
from tf2_engine.plan import make_plan
from tf2_engine.summaries import statistics
from tf2_engine.summaries.statistics import StatisticsRecorder

ROWS, DIM, SAMPLES, CORES = 6, 3, 4, 2
LOW, HIGH = -0.5, 0.75

SLOTS = FTRL(0.5).slot_names

# Sums of at most 30 products of numbers below 4, in float32.
NEAR = 30 * 4 * 2.0**-23


def a_plan(**settings: Any) -> Any:
    """Returns a plan of two features over one table: of several ids and of one."""
    optimizer = Adagrad(0.5, clip_gradient_min=LOW, clip_gradient_max=HIGH, **settings)
    spec = EngineSpec(
        (TableSpec("words", ROWS, DIM, "mean", optimizer), TableSpec("b", 2, 1, optimizer=SGD())),
        (FeatureSpec("bag", "words"), FeatureSpec("one", "words"), FeatureSpec("b", "b")),
        out_of_range_ids="drop",
    )
    return make_plan(spec, [(SAMPLES,), (SAMPLES,), (SAMPLES,)], num_cores=CORES)


def a_batch(random: np.random.Generator) -> tuple[list[Any], list[Any], list[Any]]:
    """Returns parts and gradients of cores, and the occurrences of both features of "words".

    Ids from -1 to one beyond the table: some name no row.
    """
    parts, gradients, occurrences = [], [], []
    for _ in range(CORES):
        lengths = random.integers(0, 4, SAMPLES)
        where = np.array([(b, i) for b, n in enumerate(lengths) for i in range(n)], np.int64)
        where = where.reshape(-1, 2)
        ids = random.integers(-1, ROWS + 1, len(where))
        weights = random.uniform(0.25, 1.25, len(where)).astype("f4")
        one = random.integers(-1, ROWS + 1, SAMPLES)
        shape = [SAMPLES, 3]
        parts.append(
            [
                FeatureBatch(
                    tf.SparseTensor(where, ids, shape), tf.SparseTensor(where, weights, shape)
                ),
                FeatureBatch(tf.constant(one), None),
                FeatureBatch(tf.zeros([SAMPLES], tf.int64), None),
            ]
        )
        gradients.append([random.normal(size=(SAMPLES, d)).astype("f4") for d in (DIM, DIM, 1)])
        occurrences.append([inputs.sparse(where, ids, weights), inputs.dense(one)])
    return parts, gradients, occurrences


def by_loops(gradients: Any, occurrences: Any) -> dict[str, float]:
    """Returns the statistics of "words", in float64."""
    sums: dict[int, Any] = {}
    ids = touched = 0
    for of_core, features in zip(gradients, occurrences, strict=True):
        for gradient, found in zip(of_core, features, strict=False):
            inside = [each for each in found if 0 <= each.id < ROWS]
            ids, touched = ids + len(found), touched + len(inside)
            _, gains = combine(np.zeros((ROWS, DIM)), inside, SAMPLES, "mean")
            for each, gain in zip(inside, gains, strict=True):
                part = gain * gradient[each.cell].astype("f8")
                sums[each.id] = sums.get(each.id, np.zeros(DIM)) + part
    elements = np.concatenate(list(sums.values()))
    return {
        "ids": ids,
        "ids_per_sample": ids / (2 * CORES * SAMPLES),
        "rows_touched": len(sums),
        "out_of_vocabulary": 1 - touched / ids,
        "gradient_norm": float(np.sqrt(np.sum(elements**2))),
        "clipped_share": float(np.mean((elements < LOW) | (elements > HIGH))),
    }


@pytest.mark.parametrize("seed", range(3))
def test_statistics_of_a_step_are_those_of_loops(seed: int) -> None:
    """Ids, rows, the share of the vocabulary, gradients and what is clipped; of all cores."""
    plan = a_plan()
    parts, gradients, occurrences = a_batch(np.random.default_rng(seed))
    wanted = by_loops(gradients, occurrences)
    assert 0 < wanted["out_of_vocabulary"] < 1
    assert 0 < wanted["clipped_share"] < 1

    values = statistics.of_step(plan, plan.tables[0], parts, gradients).numpy()

    actual = statistics.tagged(plan.tables[0], zip(statistics.OF_STEP, values, strict=True))
    assert set(actual) == {f"tables/words/{name}" for name in wanted}
    for name, value in wanted.items():
        assert actual[f"tables/words/{name}"] == pytest.approx(value, rel=0, abs=NEAR), name
    other = statistics.tagged(plan.tables[1], zip(statistics.OF_STEP, values, strict=True))
    assert "tables/b/clipped_share" not in other, "a table whose gradients are not clipped"


def engine(rows: int) -> TPUEmbedding:
    """Returns an engine of a table whose row i is i + 1 everywhere."""
    start = tf.constant_initializer(np.repeat(np.arange(1.0, rows + 1)[:, None], 4, 1))
    table = TableSpec(
        "words",
        rows,
        4,
        "sum",
        FTRL(0.5, initial_accumulator_value=0.25, clip_weight_min=2.0, clip_weight_max=rows - 1.0),
        start,
    )
    embedding = TPUEmbedding(EngineSpec((table,), (FeatureSpec("word", "words"),)))
    embedding.build_for([(2,)])
    return embedding


def test_statistics_of_a_table_are_those_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms, ranges of slots and weights at limits, of all rows or evenly spread ones."""
    embedding = engine(10)

    actual = {key: float(x) for key, x in statistics.of_table(embedding.tables["words"]).items()}
    monkeypatch.setattr(statistics, "MOST_ROWS", 4)  # rows 0, 3, 6 and 9
    sampled = {key: float(x) for key, x in statistics.of_table(embedding.tables["words"]).items()}

    # The norm of a row is twice its number; those from 1 to 2 and from 9 to 10 are at a limit.
    slots = {name: embedding.tables["words"].variables[name][0].numpy() for name in SLOTS}
    assert actual == {
        **{"norm/mean": 11.0, "norm/max": 20.0, "weights_at_limit": pytest.approx(0.4)},
        **{f"{name}/min": value.min() for name, value in slots.items()},
        **{f"{name}/max": value.max() for name, value in slots.items()},
    }
    assert actual["accumulators/min"] == 0.25
    assert (sampled["norm/mean"], sampled["norm/max"]) == (2 * (1 + 4 + 7 + 10) / 4, 20.0)
    assert sampled["weights_at_limit"] == 0.5, "rows 0 and 9"


@pytest.mark.parametrize("every", [1, 3])
def test_only_steps_that_are_due_are_recorded(every: int) -> None:
    """The first step and each so many later; what is read is of the latest of them."""
    embedding = engine(10)
    recorder = StatisticsRecorder(embedding, every)
    assert recorder.read() == {}

    @tf.function
    def step(ids: Any) -> None:
        activations, update = embedding.differentiable_lookup({"word": ids})
        update({"word": tf.ones_like(activations["word"])})

    for number in range(7):
        step(tf.constant([number, number if number % 2 else 0], tf.int64))
        latest = number // every * every
        touched = 1 if latest % 2 or not latest else 2
        assert recorder.read()["tables/words/rows_touched"] == touched, number
    recorder.stop()
    assert recorder.read()["tables/words/norm/max"] > 0


def test_tables_on_a_device_are_not_watched() -> None:
    embedding = engine(10)
    embedding._cores.tables_on_device = True  # type: ignore[misc]
    with pytest.raises(errors.OutOfOrder, match=r"under a TPUStrategy.*Do not use table summaries"):
        StatisticsRecorder(embedding, 1)
