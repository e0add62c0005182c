"""Whole steps with combinations of optimizers, inputs, hosts, cores, modes and places of rows.

Other tests vary the settings of one part, whereas these combine settings of all parts. Oracle: the
float64 references.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cases import Pair, Row, covering, every, in_turn, pairs_of, pairwise, places
from compat_tests.cases.optimizers import (
    ACCUMULATION,
    CASES,
    COMBINERS,
    DRIVERS,
    KINDS,
    MODES,
    REFUSED,
    ROWS,
    OptimizerCase,
    allows,
    initial_weights,
)
from compat_tests.conftest import Array, Engine, Runner
from compat_tests.engine.test_optimizers import Record
from compat_tests.references.inputs import Occurrence, dense, ragged, sparse
from compat_tests.references.training import Lookup, assert_step
from tf2_engine import OPTIMIZERS, EngineSpec, FeatureSpec, TableSpec

PLACES = ("1x1", "1x2", "2x1 div", "2x1 mod", "2x2 div", "2x2 mod", "5x1 div", "5x1 mod")
"""Hosts and cores of each, and which host holds which row."""
INPUTS = ("dense", "sparse", "weighted sparse", "sequence", "ragged", "weighted ragged", "ragged 2")
"""Kinds of inputs; "ragged 2" are sequences by an output shape of rank 2."""
FACTORS: dict[str, tuple[Any, ...]] = {
    "kind": KINDS,
    "input": ("dense", "weighted sparse", "sequence", "weighted ragged", "ragged 2"),
    "place": ("1x1", "1x2", "2x2 div", "3x1 mod"),
    "mode": MODES,
    "accumulation": tuple(ACCUMULATION),
    "combiner": COMBINERS,
    "driver": DRIVERS,
}
"""Pairs of settings in the quick tier; an engine takes a while to trace, the longer the
more hosts have a part of each table: five are in the full tier, and in test_sharding."""
REFUSED_HERE: frozenset[Pair] = frozenset(
    {
        *[pair for pair in REFUSED if {factor for factor, _ in pair} <= set(FACTORS)],
        # The software TPU is one host.
        *[
            (("place", place), ("driver", "tpu"))
            for place in (*PLACES, *FACTORS["place"])
            if not place.startswith("1")
        ],
    }
)
FULL_FACTORS = {
    "kind": KINDS,
    "input": INPUTS,
    "place": PLACES,
    "mode": MODES,
    "driver": DRIVERS,
}
"""Settings that the full tier and the soak combine; other settings and cases take turns."""
TRACED_FACTORS = {**FULL_FACTORS, "mode": tuple(mode for mode in MODES if mode != "eager")}
"""Of these the full tier has every three levels, and the soak all other combinations: where several
hosts have a part of a table it takes seconds to trace."""

BATCH, LENGTH, STEPS = 3, 2, 3
RATE = 0.125


@dataclasses.dataclass(frozen=True)
class Combination:
    """A level of each factor, and a case of the kind."""

    kind: str
    input: str
    place: str
    mode: str
    accumulation: str
    combiner: str
    driver: str
    optimizer: str

    def __str__(self) -> str:
        levels = [self.optimizer, *dataclasses.astuple(self)[1:-1]]
        return "-".join(str(level) for level in levels)

    @property
    def case(self) -> OptimizerCase:
        return CASES[self.optimizer]

    @property
    def hosts(self) -> int:
        return int(self.place[0])

    @property
    def cores_per_host(self) -> int:
        return int(self.place[2])

    @property
    def cores(self) -> int:
        return self.hosts * self.cores_per_host

    @property
    def strategy(self) -> str:
        return "mod" if self.place.endswith("mod") else "div"

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the activation, without `dim`."""
        return (BATCH, LENGTH) if self.input in ("sequence", "ragged 2") else (BATCH,)

    def feature(self, name: str, table: str) -> FeatureSpec:
        """Returns the feature that takes the kind of input."""
        return FeatureSpec(
            name,
            table,
            max_sequence_length=LENGTH if self.input == "sequence" else 0,
            output_shape=self.shape if self.input == "ragged 2" else None,
        )

    def rate_at(self, step: int) -> float:
        """Returns the learning rate: constant, or the number of the step where that is the rate."""
        return float(step + 1) if self.case.rate_is_step else RATE


def cases_of(row: Row) -> list[str]:
    named = {factor: row[factor] for factor in ("accumulation", "driver")}
    return [
        case.name for case in CASES.values() if case.kind == row["kind"] and allows(case, named)
    ]


def accumulation_of(row: Row) -> list[str]:
    """Returns how the kind of a row can accumulate."""
    refused = {pair for pair in REFUSED_HERE if pair[0] == ("kind", row["kind"])}
    return [
        level for level in ACCUMULATION if ("accumulation", level) not in dict(refused).values()
    ]


def quick() -> list[Combination]:
    """Returns few combinations that hold every pair of levels."""
    rows = in_turn(pairwise(FACTORS, REFUSED_HERE), "optimizer", cases_of)
    return [Combination(**row) for row in rows]


def full() -> list[Combination]:
    """Returns every combination of the thorough tiers' factors."""
    rows = in_turn(every(FULL_FACTORS, REFUSED_HERE), "accumulation", accumulation_of)
    rows = in_turn(rows, "combiner", lambda _: COMBINERS)
    return [Combination(**row) for row in in_turn(rows, "optimizer", cases_of)]


def tiers() -> tuple[list[Combination], list[Combination]]:
    """Returns the combinations of the full tier, and those of the soak."""
    chosen = {tuple(row.values()) for row in covering(3, TRACED_FACTORS, REFUSED_HERE)}
    thorough: list[Combination] = []
    rest: list[Combination] = []
    for one in full():
        is_chosen = one.mode == "eager" or levels_of(one) in chosen
        (thorough if is_chosen else rest).append(one)
    return thorough, rest


def levels_of(one: Combination) -> tuple[Any, ...]:
    """Returns the levels of a combination, in the order of `FULL_FACTORS`."""
    return tuple(getattr(one, factor) for factor in FULL_FACTORS)


Group = tuple[Combination, ...]


def together(combinations: list[Combination], *also: str) -> Iterator[Any]:
    return places(combinations, "mode", "place", "driver", *also)


class FeatureBatch(NamedTuple):
    """One core's batch of a feature.

    Attributes:
        value: the tensor of ids.
        weight: the tensor of weights, or None.
        occurrences: its occurrences, by the reference.
        gradient: what comes back, [*shape, dim] float32.
    """

    value: Any
    weight: Any
    occurrences: list[Occurrence]
    gradient: Array


def batch_of(one: Combination, chance: np.random.Generator, sign: Array) -> FeatureBatch:
    """Returns ids that repeat, some samples without any, and gradients of one sign a column."""
    gradient = (chance.uniform(0.25, 1.0, (*one.shape, one.case.dim)) * sign).astype(np.float32)
    lengths = [3, 0, 2][:BATCH]
    if one.input == "dense":
        ids = chance.integers(0, ROWS, BATCH)
        return FeatureBatch(tf.constant(ids), None, dense(ids), gradient)
    splits = np.cumsum([0, *lengths])
    ids = chance.integers(0, ROWS, splits[-1])
    ids[1] = ids[0]
    weights = chance.uniform(0.5, 2.0, len(ids)).astype(np.float32)
    weights_of_ids = weights if one.input.startswith("weighted") else None
    if "ragged" in one.input:
        value = tf.RaggedTensor.from_row_splits(ids, splits)
        occurrences = ragged(splits, ids, weights_of_ids, num_cells=int(np.prod(one.shape)))
        return FeatureBatch(
            value,
            None if weights_of_ids is None else value.with_values(weights_of_ids),
            occurrences,
            gradient,
        )
    places = np.array([[row, at] for row, count in enumerate(lengths) for at in range(count)])
    shape = [BATCH, max(lengths)]
    length = LENGTH if one.input == "sequence" else 0
    return FeatureBatch(
        tf.SparseTensor(places, ids, shape),
        None if weights_of_ids is None else tf.SparseTensor(places, weights_of_ids, shape),
        sparse(places, ids, weights_of_ids, max_sequence_length=length),
        gradient,
    )


def steps_of(one: Combination, place: int) -> list[list[FeatureBatch]]:
    chance = np.random.default_rng([place, 7])
    batches = []
    for _ in range(STEPS):
        sign = chance.choice([-1.0, 1.0], one.case.dim)
        batches.append([batch_of(one, chance, sign) for _ in range(one.cores)])
    return batches


@functools.lru_cache(maxsize=1)
def train(group: Group) -> Record:
    """Trains a table per combination in one engine."""
    mode, hosts, cores = group[0].mode, group[0].hosts, group[0].cores
    runner = Runner(mode)
    with runner.scope():
        step = tf.Variable(0.0, name="step")
    engine = Engine(
        runner,
        spec_of(group, step),
        driver=group[0].driver,
        num_hosts=hosts,
        num_cores=cores,
    )
    engine.build_for([one.shape for one in group])
    for place, one in enumerate(group):
        engine.write(f"table{place}", initial_weights(one.case, place))

    record = Record([engine.read()], [])
    for number, arguments in enumerate(arguments_of(group)):
        runner.write(step, float(number))
        record.activations.append(engine.train(*arguments))
        record.tables.append(engine.read())
    return record


def arguments_of(group: Group) -> Iterator[tuple[list[Mapping[str, Any]], ...]]:
    """Yields the arguments of `Engine.train` for each step: values, weights, gradients by core."""
    for batches in zip(*(steps_of(one, place) for place, one in enumerate(group)), strict=True):
        values, weights, gradients = (
            [
                {f"ids{place}": getattr(batch[core], name) for place, batch in enumerate(batches)}
                for core in range(group[0].cores)
            ]
            for name in ("value", "weight", "gradient")
        )
        yield values, weights, tf.nest.map_structure(tf.constant, gradients)


def spec_of(group: Group, step: tf.Variable) -> EngineSpec:
    """Returns a table with a feature for each combination."""
    tables = tuple(
        TableSpec(
            f"table{place}",
            ROWS,
            one.case.dim,
            one.combiner,
            OPTIMIZERS[one.kind](
                learning_rate=(lambda: step + 1.0) if one.case.rate_is_step else RATE,
                **one.case.settings,
                **ACCUMULATION[one.accumulation],
            ),
        )
        for place, one in enumerate(group)
    )
    features = tuple(one.feature(f"ids{place}", f"table{place}") for place, one in enumerate(group))
    return EngineSpec(tables, features, partition_strategy=group[0].strategy)


@pytest.mark.parametrize("group, place", together(quick()))
def test_steps_follow_the_reference(group: Group, place: int) -> None:
    """Activations, rows and slots are the reference's after each of three steps."""
    check(group, place)


THOROUGH, REST = tiers()


@pytest.mark.full
@pytest.mark.parametrize("group, place", together(THOROUGH, "kind"))
def test_steps_follow_the_reference_in_many_combinations(group: Group, place: int) -> None:
    """They are in every combination of eager steps, and of others where any three levels meet."""
    check(group, place)


@pytest.mark.soak
@pytest.mark.parametrize("group, place", together(REST, "kind"))
def test_steps_follow_the_reference_in_every_combination(group: Group, place: int) -> None:
    """They are in all other combinations."""
    check(group, place)


def check(group: Group, place: int) -> None:
    """Compares one table with the reference, which starts anew from its rows before each step."""
    record, one, name = train(group), group[place], f"table{place}"
    for number, cores in enumerate(steps_of(one, place)):
        before, after = (record.tables[at][name] for at in (number, number + 1))
        activations = [of_core[f"ids{place}"] for of_core in record.activations[number]]
        assert_step(
            [one.case.reference_of(before, ACCUMULATION[one.accumulation])],
            [
                Lookup(core, 0, batch.occurrences, activations[core], batch.gradient)
                for core, batch in enumerate(cores)
            ],
            after,
            one.rate_at(number),
            f"{one}, step {number}",
            **one.case.looked_up(before["parameters"]),
            n_terms=3,
            combiner=one.combiner,
            num_cores=one.cores,
            cores_per_host=one.cores_per_host,
            sharding=one.strategy,
        )


def test_the_thorough_tiers_hold_every_product() -> None:
    """Each product is in one of the two; of traced steps, each three levels are in the first."""
    product = {
        row
        for row in itertools.product(*FULL_FACTORS.values())
        if not REFUSED_HERE & set(pairs_of(dict(zip(FULL_FACTORS, row, strict=True))))
    }
    whole = [levels_of(one) for one in (*THOROUGH, *REST)]
    assert len(whole) == len(product)
    assert set(whole) == product

    traced = [levels_of(one) for one in THOROUGH if one.mode != "eager"]
    for three in itertools.combinations(range(len(FULL_FACTORS)), 3):
        possible = {tuple(row[at] for at in three) for row in product if "eager" not in row}
        assert {tuple(row[at] for at in three) for row in traced} == possible
    assert {one.mode for one in REST} == set(TRACED_FACTORS["mode"])
