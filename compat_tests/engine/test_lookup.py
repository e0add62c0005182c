"""Lookups of every kind of input with every combiner, forward and backward."""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from compat_tests.cases.optimizers import COMBINERS, DRIVERS, MODES
from compat_tests.conftest import Array, Engine, Runner
from compat_tests.references.tolerance import assert_lookup
from compat_tests.references.training import ReferenceTable, contributions
from compat_tests.support.lookup_inputs import (
    DIM,
    FIRST,
    GAPS,
    INPUTS,
    PLACES,
    ROWS,
    Input,
    Pairs,
    a_dense,
    a_ragged,
    a_sparse,
)
from tf2_engine import SGD, EngineSpec, FeatureSpec, TableSpec
from tf2_engine.backends import HostDriver


def engines() -> list[tuple[str, str, Pairs, bool]]:
    """Returns what shares an engine: mode, driver, inputs with the combiners of their tables; tier.

    Eagerly every input meets every combiner. In functions and graphs they take turns, and half of
    the inputs are in functions, half in graphs. Drivers take turns too, and in the full tier every
    input meets every driver in every mode.
    """
    combinations = [
        ("eager", driver, tuple((name, combiner) for name in INPUTS), False)
        for combiner, driver in zip(itertools.cycle(COMBINERS), DRIVERS, strict=False)
    ]
    turns = tuple(zip(INPUTS, itertools.cycle(COMBINERS), strict=False))
    combinations += [
        ("function", "tpu", turns[::2], False),
        ("graph", "native", turns[1::2], False),
    ]
    combinations += [(mode, driver, turns, True) for mode in MODES for driver in DRIVERS]
    return combinations


EVERY = [
    pytest.param(
        mode,
        driver,
        pairs,
        place,
        id=f"{name}-{combiner}-{mode}-{driver}",
        marks=[pytest.mark.full] if full else [],
    )
    for mode, driver, pairs, full in engines()
    for place, (name, combiner) in enumerate(pairs)
]


class Results(NamedTuple):
    """What an engine made of one step: activations, gradients sent, tables before and after."""

    activations: dict[str, Array]
    gradients: dict[str, Array]
    before: dict[str, dict[str, Array]]
    after: dict[str, dict[str, Array]]

    def assert_correct(self, one: Input, combiner: str, place: int, where: str) -> None:
        """Compares the table and the feature of one place with the reference."""
        name, table = f"ids{place}", f"table{place}"
        before, after = (tables[table]["parameters"] for tables in (self.before, self.after))
        assert_step(
            one, combiner, before, (self.activations[name], self.gradients[name], after), where
        )


first_rows = tf.constant_initializer(FIRST)


@functools.lru_cache
def step(mode: str, pairs: Pairs, driver: str) -> Results:
    """Runs one step of SGD at a rate of 1, with a feature and a table for each input."""
    spec = EngineSpec(
        tuple(
            TableSpec(f"table{place}", ROWS, DIM, combiner, SGD(1.0), first_rows)
            for place, (_, combiner) in enumerate(pairs)
        ),
        tuple(
            FeatureSpec(
                f"ids{place}",
                f"table{place}",
                max_sequence_length=INPUTS[name].length,
                output_shape=INPUTS[name].shape if INPUTS[name].declared else None,
            )
            for place, (name, _) in enumerate(pairs)
        ),
    )
    engine = Engine(Runner(mode), spec, driver=driver)
    engine.build_for([INPUTS[name].shape for name, _ in pairs])
    chance = np.random.default_rng(0)
    features, weights, gradients = {}, {}, {}
    for place, (name, _) in enumerate(pairs):
        one = INPUTS[name]
        features[f"ids{place}"] = one.value()
        weights[f"ids{place}"] = None if one.weight is None else one.weight()
        gradients[f"ids{place}"] = tf.constant(chance.uniform(-1, 1, (*one.shape, DIM)), tf.float32)
    before = engine.read()
    activations = engine.train([features], [weights], [gradients])[0]
    sent = {feature: gradient.numpy() for feature, gradient in gradients.items()}
    return Results(activations, sent, before, engine.read())


@pytest.mark.parametrize("mode, driver, pairs, place", EVERY)
def test_inputs_follow_the_reference(mode: str, driver: str, pairs: Pairs, place: int) -> None:
    """Activations are the reference's; each row gets gain times gradient of what looked it up."""
    name, combiner = pairs[place]
    where = f"{name}, {combiner}, {mode}, {driver}"
    step(mode, pairs, driver).assert_correct(INPUTS[name], combiner, place, where)


def assert_activation(
    one: Input, combiner: str, table: Array, actual: Array, where: str
) -> list[float]:
    """Compares an activation with the reference; returns the gain of each occurrence."""
    assert actual.shape == (*one.shape, DIM), where
    n_terms = most(occurrence.cell for occurrence in one.occurrences)
    return assert_lookup(table, one.occurrences, combiner, actual, n_terms=n_terms, where=where)


def assert_step(
    one: Input, combiner: str, before: Array, step: tuple[Array, Array, Array], where: str
) -> None:
    """Compares one step of SGD at a rate of 1 with the reference.

    Args:
        step: the activation, the gradient, and the rows after it, of which no others may move.
    """
    activation, gradient, after = step
    gains = assert_activation(one, combiner, before, activation, where)
    expected = ReferenceTable(before, "SGD", {})
    expected.apply(contributions(0, 0, one.occurrences, gains), {(0, 0): gradient}, 1.0)
    # What cancels in a sum was as large as its terms.
    terms = sum(abs(gain) for gain in gains) * np.abs(gradient).max(initial=0.0)
    expected.assert_held({"parameters": after}, where, terms)
    untouched = expected.updates_of_row == 0
    np.testing.assert_array_equal(after[untouched], before[untouched], where)


def most(values: Any) -> int:
    """Returns how often the most frequent value occurs; at least 1."""
    counts = np.unique(list(values), return_counts=True)[1]
    return int(counts.max(initial=1))


def lookup_engine(
    combiner: str = "mean",
    length: int = 0,
    *,
    mode: str = "eager",
    native: bool | None = None,
    **more: Any,
) -> Engine:
    """Returns an engine with one feature, `ids`, that is built by its first batch."""
    table = TableSpec("table", ROWS, DIM, combiner, SGD(1.0), first_rows)
    spec = EngineSpec((table,), (FeatureSpec("ids", "table", length),), **more)
    return Engine(Runner(mode), spec, driver=HostDriver(native))


# Ids outside of the table.

OUTSIDE = {
    "dense": (a_dense([3, ROWS, 0, -1]), a_dense([3, 1, 0, 1])),
    "sparse": (
        a_sparse(PLACES, [4, ROWS, 7, -7, 0, 2**40], shape=[4, 3]),
        a_sparse(PLACES, [4, 1, 7, 7, 0, 11], shape=[4, 3]),
    ),
    "sparse, weights": (
        a_sparse(PLACES, [4, ROWS, 7, -7, 0, 99], [1, 2, 3, 4, 5, 6], shape=[4, 3]),
        a_sparse(PLACES, [4, 1, 7, 7, 0, 11], [1, 2, 3, 4, 5, 6], shape=[4, 3]),
    ),
    "sequence": (
        a_sparse(GAPS, [4, -1, 7, ROWS, 0, 3, 5], shape=[3, 5], length=3),
        a_sparse(GAPS, [4, 1, 7, 7, 0, 3, 5], shape=[3, 5], length=3),
    ),
    "ragged": (
        a_ragged([0, 2, 2, 5, 6], [4, ROWS, 7, -7, 0, 99], shape=(4,)),
        a_ragged([0, 2, 2, 5, 6], [4, 1, 7, 7, 0, 11], shape=(4,)),
    ),
    "ragged sequence": (
        a_ragged([0, 2, 2, 7, 7], [4, -1, 7, ROWS, 0, 3, 5], shape=(4, 3), length=3),
        a_ragged([0, 2, 2, 7, 7], [4, 1, 7, 7, 0, 3, 5], shape=(4, 3), length=3),
    ),
}
"""By kind an input with ids outside of the table, and the same with ids inside."""


@pytest.mark.parametrize("kind", OUTSIDE)
@pytest.mark.parametrize("mode", MODES)
def test_ids_outside_are_an_error(mode: str, kind: str) -> None:
    """An id below 0 or beyond the table fails the step; feature, table, id and way out are named.

    The next good batch is looked up, and the bad one left nothing behind.
    """
    bad, good = OUTSIDE[kind]
    engine = lookup_engine(length=good.length, mode=mode)
    engine.build_for([good.shape])
    table = engine.read()["table"]["parameters"]

    wrong = "|".join(str(one.id) for one in bad.occurrences if not 0 <= one.id < ROWS)
    # In graphs a quote has a backslash before it.
    message = (
        rf"(?s).?'ids.?' \(table .?'table.?'\).*rows 0 to {ROWS - 1}.*"
        rf"out_of_range_ids=.?'drop.?'.*({wrong})"
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        look_up(engine, bad)

    assert_activation(good, "mean", table, look_up(engine, good), f"{kind}, {mode}")
    np.testing.assert_array_equal(engine.read()["table"]["parameters"], table)


@pytest.mark.parametrize(
    "kind, combiner, mode",
    [
        *itertools.product(OUTSIDE, COMBINERS, ["eager"]),
        *[("sparse, weights", "mean", mode) for mode in MODES[1:]],
    ],
)
def test_ids_outside_can_be_dropped(kind: str, combiner: str, mode: str) -> None:
    """Dropped, such ids are absent: from the sum, from its denominator and from the update."""
    bad, _ = OUTSIDE[kind]
    inside = bad._replace(occurrences=[one for one in bad.occurrences if 0 <= one.id < ROWS])
    engine = lookup_engine(combiner, bad.length, mode=mode, out_of_range_ids="drop")
    check_step(engine, bad, inside, combiner, f"{kind}, {combiner}, {mode}")


def check_step(engine: Engine, one: Input, effective: Input, combiner: str, where: str) -> None:
    """Trains on an input, and compares the step with what has an effect of it."""
    engine.build_for([one.shape])
    before = engine.read()["table"]["parameters"]
    gradient = np.random.default_rng(1).uniform(-1, 1, (*one.shape, DIM)).astype(np.float32)
    activation = engine.train(*per_core(one), [{"ids": tf.constant(gradient)}])[0]["ids"]
    after = engine.read()["table"]["parameters"]
    assert_step(effective, combiner, before, (activation, gradient, after), where)


def look_up(engine: Engine, one: Input) -> Array:
    """Returns the activation of the only feature on the only core."""
    return engine.look_up(*per_core(one))[0]["ids"]


def per_core(one: Input) -> tuple[list[Any], list[Any] | None]:
    """Returns features and weights of the only core."""
    weights = None if one.weight is None else [{"ids": one.weight()}]
    return [{"ids": one.value()}], weights


# Any input at all.

IDS_AND_PLACES = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.integers(0, 5),
        st.integers(0, ROWS - 1),
        # Sums of these and of their squares are exact: a zero is a zero.
        st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 3.0]),
    ),
    max_size=12,
    unique_by=lambda entry: entry[:2],
)


def drawn(entries: list[tuple[int, int, int, float]], weighted: bool, length: int) -> Input:
    """Returns a sparse input of (sample, position, id, weight), in the order of its indices."""
    entries = sorted(entries)
    return a_sparse(
        [entry[:2] for entry in entries],
        [entry[2] for entry in entries],
        [entry[3] for entry in entries] if weighted else None,
        shape=[4, 6],
        length=length,
    )


@settings(derandomize=True, max_examples=40, deadline=None)
@given(
    entries=IDS_AND_PLACES,
    weighted=st.booleans(),
    combiner=st.sampled_from(COMBINERS),
    length=st.sampled_from([0, 1, 4]),
)
def test_any_sparse_input(
    entries: list[tuple[int, int, int, float]], weighted: bool, combiner: str, length: int
) -> None:
    """Any sparse tensor, weighted or not, sequence or not, is looked up and trained correctly."""
    one, where = drawn(entries, weighted, length), f"{entries}, {combiner}, length {length}"
    check_step(lookup_engine(combiner, length), one, one, combiner, where)


@settings(derandomize=True, max_examples=25, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(0, ROWS - 1), max_size=5), min_size=1, max_size=4),
    combiner=st.sampled_from(COMBINERS),
    length=st.sampled_from([0, 2, 4]),
)
def test_ragged_and_sparse_agree(rows: list[list[int]], combiner: str, length: int) -> None:
    """The same ids give the same activations, to the bit, as a ragged and as a sparse tensor."""
    as_ragged = tf.ragged.constant(rows, tf.int64, ragged_rank=1)
    as_sparse = tf.SparseTensor(
        np.array([(i, j) for i, row in enumerate(rows) for j in range(len(row))], np.int64).reshape(
            -1, 2
        ),
        as_ragged.values,
        [len(rows), 5],
    )
    engine = lookup_engine(combiner, length)

    np.testing.assert_array_equal(
        engine.look_up([{"ids": as_ragged}])[0]["ids"],
        engine.look_up([{"ids": as_sparse}])[0]["ids"],
    )
