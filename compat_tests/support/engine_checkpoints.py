"""Creates our engines and stock's with numbers in the tables, and reads checkpoints."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

import tf2_engine
from compat_tests.conftest import rows_of_shard
from tf2_engine import specs
from tf2_engine.backends import HostDriver

stock = tf.tpu.experimental.embedding

VOCABULARY = {"us/ers.x": 10, "items": 3}
DIM = {"us/ers.x": 4, "items": 2}
OPTIMIZERS = ("SGD", "Adagrad", "AdagradMomentum", "FTRL", "Adam")
"""The optimizers that stock has."""

Values = Mapping[str, Mapping[str, Any]]
"""Maps each table's name to a dict from "parameters" and slot names to rows in order of ids."""


class Placement(NamedTuple):
    """A number of hosts and a partition strategy."""

    hosts: int
    strategy: str

    def __str__(self) -> str:
        return f"{self.strategy} on {self.hosts}"


# With five hosts, "items" has fewer rows than hosts.
PLACEMENTS = [Placement(1, "div"), Placement(2, "div"), Placement(5, "div")]
PLACEMENTS += [Placement(1, "mod"), Placement(3, "mod"), Placement(5, "mod")]
ONE = PLACEMENTS[0]

EACH = [
    pytest.param(
        optimizer,
        placement,
        id=f"{optimizer}, {placement}",
        marks=() if ONE is placement or optimizer == "Adagrad" else pytest.mark.full,
    )
    for optimizer in OPTIMIZERS
    for placement in PLACEMENTS
]
"""All combinations. In the quick tier, each optimizer and each placement occurs."""


def feature_config() -> Any:
    users, items = (
        stock.TableConfig(VOCABULARY[name], DIM[name], name=name, combiner="sum")
        for name in VOCABULARY
    )
    return {
        "user": stock.FeatureConfig(users),
        "nested": {"item": stock.FeatureConfig(items), "others": [stock.FeatureConfig(users)]},
    }


def ours(
    optimizer: str | None = "Adagrad",
    placement: Placement = ONE,
    *,
    build: bool = True,
    pipelined: bool = False,
    cores: int | None = None,
    **options: Any,
) -> Any:
    """Creates our engine, by default with one core per host.

    Without an optimizer, the engine only looks up.
    """
    spec = specs.from_feature_config(
        feature_config(),
        getattr(tf2_engine, optimizer or "SGD")(0.1),
        partition_strategy=placement.strategy,
        pipeline_execution_with_tensor_core=pipelined,
    )
    engine = tf2_engine.TPUEmbedding(
        spec,
        num_hosts=placement.hosts,
        num_cores=cores or placement.hosts,
        training=optimizer is not None,
        **options,
    )
    if build:
        engine.build_for([(2,)] * 3)
    return engine


def theirs(optimizer: str | None = "Adagrad", *, build: bool = True) -> Any:
    """Creates stock's TPUEmbedding, whose tables are ordinary variables on this machine."""
    engine = stock.TPUEmbedding(
        feature_config(), None if optimizer is None else getattr(stock, optimizer)(0.1)
    )
    if build:
        engine.build()
    return engine


def numbers(table: str, kind: str) -> Any:
    first = 1000 * list(VOCABULARY).index(table) + 100 * len(kind)
    count = VOCABULARY[table] * DIM[table]
    return np.arange(first, first + count, dtype=np.float32).reshape(-1, DIM[table])


def fill(engine: Any) -> Values:
    """Assigns a different number to each element of our engine's tables; returns the numbers."""
    filled: dict[str, dict[str, Any]] = {}
    for name, table in engine.tables.items():
        filled[name] = {}
        for kind, shards in table.variables.items():
            filled[name][kind] = values = numbers(name, kind)
            rows = max(len(values), len(shards))  # one for each host
            padded = np.concatenate([values, np.full([rows - len(values), DIM[name]], -7)])
            for number, shard in enumerate(shards):
                shard.assign(padded[rows_of_shard(rows, len(shards), number, table.strategy)])
    return filled


def fill_theirs(engine: Any) -> Values:
    for name, kinds in engine._variables.items():
        for kind, variable in kinds.items():
            variable.assign(numbers(name, kind))
    return read_theirs(engine)


def read(engine: Any) -> Values:
    """Returns the values of our engine's variables, without padding rows."""
    contents: dict[str, dict[str, Any]] = {}
    for name, table in engine.tables.items():
        contents[name] = {}
        for kind, shards in table.variables.items():
            rows = sum(shard.shape[0] for shard in shards)
            whole = np.empty([rows, shards[0].shape[1]], np.float32)
            for number, shard in enumerate(shards):
                whole[rows_of_shard(rows, len(shards), number, table.strategy)] = shard.numpy()
            contents[name][kind] = whole[: table.plan.vocabulary_size]
    return contents


def read_theirs(engine: Any) -> Values:
    return {
        name: {kind: variable.numpy() for kind, variable in kinds.items()}
        for name, kinds in engine._variables.items()
    }


def read_file(path: str) -> Values:
    """Reads the values of the object `embedding` from a checkpoint."""
    contents: dict[str, dict[str, Any]] = {}
    for name in VOCABULARY:
        root = f"embedding/{name.replace('.', '..').replace('/', '.S')}"
        contents[name] = {}
        for key, _ in tf.train.list_variables(path):
            child, _, attribute = key.partition("/.ATTRIBUTES/")
            if attribute == "VARIABLE_VALUE" and (child == root or child.startswith(f"{root}.S")):
                kind = child.removeprefix(root).removeprefix(".S") or "parameters"
                contents[name][kind] = tf.train.load_variable(path, key)
    return contents


def assert_same(wanted: Values, actual: Values, where: str = "") -> None:
    """Checks that two sets of values are bitwise equal."""
    assert {name: set(kinds) for name, kinds in wanted.items()} == {
        name: set(kinds) for name, kinds in actual.items()
    }, where
    for name, kinds in wanted.items():
        for kind, values in kinds.items():
            np.testing.assert_array_equal(
                values, actual[name][kind], err_msg=f"{where}: table {name}, {kind}"
            )


def save(engine: Any, directory: pathlib.Path, **more: Any) -> str:
    """Writes a checkpoint with the engine as `embedding`, and returns the path."""
    return str(tf.train.Checkpoint(embedding=engine, **more).save(str(directory / "ckpt")))


def restore(engine: Any, path: str) -> Any:
    """Restores the engine from `embedding`, and returns the status object."""
    return tf.train.Checkpoint(embedding=engine).restore(path)


class Recorder(HostDriver):
    """A driver that records when tables are loaded and retrieved."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, float]] = []

    def load(self, tables: Any) -> Any:
        self._note("load", tables)
        return super().load(tables)

    def retrieve(self, tables: Any) -> Any:
        self._note("retrieve", tables)
        return super().retrieve(tables)

    def _note(self, call: str, tables: Any) -> None:
        value = tables["items"].variables["parameters"][0]
        self.calls.append((call, float(value.numpy()[0, 0])))


def export(engine: Any, directory: pathlib.Path) -> str:
    """Writes a SavedModel, and returns the path of its variables."""
    model = tf.Module()
    model.embedding = engine
    tf.saved_model.save(model, str(directory))
    return str(directory / "variables" / "variables")
