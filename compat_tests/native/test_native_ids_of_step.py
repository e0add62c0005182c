"""If ids are looked up in the same step, the ops that read rows check the ids.

If the check fails, nothing may be written, even though gradients do not depend on the lookups, and
other ops update the tables of other features.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tf2_engine import SGD, Adam, EngineSpec, FeatureSpec, TableSpec, TPUEmbedding
from tf2_engine.backends import HostDriver

ROWS, DIM, SAMPLES = 40, 16, 3
FEATURES = ("first", "second")
BAD = {"beyond": ROWS, "below zero": -1, "far": 1 << 40}
GOOD = 7
FORMS: dict[str, Callable[[tf.Tensor], Any]] = {
    "dense": lambda ids: ids,
    "ragged": lambda ids: tf.RaggedTensor.from_row_lengths(ids, [1, 0, 2]),
    "sparse": lambda ids: tf.SparseTensor([[0, 0], [2, 0], [2, 1]], ids, [SAMPLES, 2]),
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """How the tables are: their combiner, shards, and whether one is on TensorFlow's ops."""

    combiner: str = "sum"
    num_hosts: int = 1
    splits: bool = False


SETTINGS = {
    "plain": Setting(),
    "mean": Setting("mean"),
    "shards": Setting(num_hosts=3),
    "split": Setting(splits=True),
}


def engine(setting: Setting) -> TPUEmbedding:
    """Returns an engine of a table for each feature, which has been built."""
    every_row = Adam(0.5, lazy_adam=False)  # which native ops do not have
    optimizers = [SGD(0.5), every_row if setting.splits else SGD(0.5)]
    initializer = tf.random_uniform_initializer(-1.0, 1.0)
    spec = EngineSpec(
        tuple(
            TableSpec(f"{name}s", ROWS, DIM, setting.combiner, optimizer, initializer)
            for name, optimizer in zip(FEATURES, optimizers, strict=True)
        ),
        tuple(FeatureSpec(name, f"{name}s") for name in FEATURES),
    )
    driver = HostDriver(native=None if setting.splits else True)
    hosts = setting.num_hosts
    embedding = TPUEmbedding(spec, num_cores=hosts, num_hosts=hosts, driver=driver)
    embedding.build_for([(SAMPLES,)] * len(FEATURES))
    return embedding


def batch(setting: Setting, form: str, last: Mapping[str, Any]) -> Any:
    """Returns a batch; `last` has the last id of each feature on the last core."""

    def of_core(core: int) -> dict[str, Any]:
        is_last = core == setting.num_hosts - 1
        ids = {name: [3, 5, last[name] if is_last else GOOD] for name in FEATURES}
        return {name: FORMS[form](tf.convert_to_tensor(ids[name], tf.int64)) for name in FEATURES}

    cores = [of_core(core) for core in range(setting.num_hosts)]
    return cores if setting.num_hosts > 1 else cores[0]


def gradients(setting: Setting) -> Any:
    of_core = {name: tf.ones([SAMPLES, DIM]) for name in FEATURES}
    return [of_core] * setting.num_hosts if setting.num_hosts > 1 else of_core


def values_of(embedding: TPUEmbedding) -> list[Any]:
    """Returns the shards of the parameters of all tables."""
    tables = embedding.tables.values()
    return [shard for table in tables for shard in table.variables["parameters"]]


Steps = tuple[Callable[[Mapping[str, int]], Any], Callable[[], list[Any]]]
"""A step of training on the last ids, and what reads the tables."""


@contextlib.contextmanager
def in_a_graph(setting: Setting, form: str) -> Iterator[Steps]:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        embedding = engine(setting)
        last = {name: tf.compat.v1.placeholder(tf.int64, []) for name in FEATURES}
        embedding.enqueue(batch(setting, form, last))
        embedding.dequeue()
        update = embedding.apply_gradients(gradients(setting))
        session.run(tf.compat.v1.global_variables_initializer())
        yield (
            lambda ids: session.run(update, {last[name]: ids[name] for name in FEATURES}),
            lambda: session.run(values_of(embedding)),
        )


@contextlib.contextmanager
def in_a_function(setting: Setting, form: str) -> Iterator[Steps]:
    """Runs steps as a Keras layer does."""
    embedding = engine(setting)

    @tf.function(autograph=False)
    def step(last: Any) -> None:
        _, train = embedding.differentiable_lookup(batch(setting, form, last))
        train(gradients(setting))

    yield (
        lambda ids: step({name: tf.constant(ids[name], tf.int64) for name in FEATURES}),
        lambda: [value.numpy() for value in values_of(embedding)],
    )


def message(bad: int, feature: str) -> str:
    """Returns a pattern for the error, which names feature, table, id and the setting to change."""
    way_out = f"rows 0 to {ROWS - 1}.*out_of_range_ids=.{{1,2}}drop"
    return f"(?s)Feature .?'{feature}.*table .?'{feature}s.*{way_out}.*{bad}"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("steps", [in_a_graph, in_a_function])
def test_a_bad_id_changes_nothing(steps: Any, setting: str, form: str) -> None:
    """The step fails and names the feature; neither table changes before a step without bad ids."""
    good = dict.fromkeys(FEATURES, GOOD)
    with steps(SETTINGS[setting], form) as (step, tables):
        before = tables()
        for feature, bad in itertools.product(FEATURES, BAD.values()):
            with pytest.raises(tf.errors.InvalidArgumentError, match=message(bad, feature)):
                step({**good, feature: bad})
            for one, other in zip(before, tables(), strict=True):
                np.testing.assert_array_equal(one, other)

        step(good)
        assert not all(map(np.array_equal, before, tables()))
