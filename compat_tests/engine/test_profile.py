"""Lookup statistics: what is counted, when files are written, and how processes share them."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf2_engine
from compat_tests.conftest import Runner
from tf2_engine.backends.host import profile

BATCH = 512
IDS_PER_SAMPLE = 3
STEPS = 70
"""At 3 % of 512 samples a step, just enough for the files to be written."""


def spec(directory: pathlib.Path, rows: int = 40) -> tf2_engine.EngineSpec:
    """One table of which a feature with three ids per sample is looked up."""
    table = tf2_engine.TableSpec("items", rows, 2, "sum", tf2_engine.SGD(0.1))
    feature = tf2_engine.FeatureSpec("clicks", "items")
    return tf2_engine.EngineSpec((table,), (feature,), profile_data_directory=str(directory))


def train(
    directory: pathlib.Path, runner: Runner | None = None, steps: int = STEPS, **options: Any
) -> None:
    """Trains with all ids below 10, on each core, and retrieves.

    Args:
        runner: by default one of functions.
        **options: of the engine.
    """
    runner = runner or Runner("function")
    cores = options.setdefault("num_cores", 1)
    with runner.scope():
        engine = tf2_engine.TPUEmbedding(spec(directory), **options)
        engine.build_for([(BATCH,)])
        ids = np.arange(BATCH * IDS_PER_SAMPLE) % 10
        cells = np.repeat(np.arange(BATCH), IDS_PER_SAMPLE)
        indices = np.stack([cells, np.arange(len(ids)) % IDS_PER_SAMPLE], 1)

        def step() -> Any:
            batch = tf.SparseTensor(indices, tf.constant(ids, tf.int64), [BATCH, IDS_PER_SAMPLE])
            features = {"clicks": batch}
            enqueued = engine.enqueue(features if cores == 1 else [features] * cores)
            return enqueued, engine.apply_gradients(engine.dequeue())

        run, write = runner.wrap(step), runner.wrap(engine.retrieve)
        if runner.mode == "graph":
            runner.run([each.initializer for each in tf.compat.v1.local_variables()])
    for _ in range(steps):
        run()
    write()


def files(directory: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))]


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_three_in_a_hundred_samples_are_counted(mode: str, tmp_path: pathlib.Path) -> None:
    train(tmp_path, Runner(mode))
    (content,) = files(tmp_path)

    samples = BATCH * STEPS
    assert content["table"] == "items"
    assert content["samples"] == -(-samples // profile.EVERY)
    assert content["ids"] == IDS_PER_SAMPLE * content["samples"]
    assert content["per_shard"] == [content["ids"]]


def test_too_few_samples_are_not_written(tmp_path: pathlib.Path) -> None:
    train(tmp_path, steps=3)

    assert files(tmp_path) == []


def test_models_share_a_directory(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """Models with equal tables that share a directory have their counts added up.

    The second one says how the lookups of the first were spread.
    """
    train(tmp_path)
    with caplog.at_level("INFO"):
        train(tmp_path)
    (content,) = files(tmp_path)

    assert content["samples"] == 2 * -(-BATCH * STEPS // profile.EVERY)
    assert "Table 'items': 3.00 ids per sample" in caplog.text
    assert profile.Counts(samples=10, ids=40, per_shard=(30, 10)).balance == 1.5


def test_other_tables_have_other_files(tmp_path: pathlib.Path) -> None:
    """Name, rows, dim, number of features, strategy and hosts decide the file's name."""
    plans = [
        tf2_engine.plan.make_plan(spec(tmp_path, rows), [(8,)], num_hosts=hosts, num_cores=hosts)
        for rows, hosts in ((40, 1), (41, 1), (40, 2))
    ]
    names = {profile.path_of(str(tmp_path), plan, plan.tables[0]) for plan in plans}

    assert len(names) == 3


BROKEN = {
    "no JSON": "{not json",
    "too deep": "[" * 100_000,
    "no number": '{"samples": Infinity, "ids": 1, "per_shard": [1]}',
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_file_is_ignored_with_a_warning(
    what: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path)
    (path,) = tmp_path.glob("*.json")
    path.write_text(BROKEN[what])
    tf2_engine.TPUEmbedding(spec(tmp_path)).build_for([(BATCH,)])

    assert str(path) in caplog.text
