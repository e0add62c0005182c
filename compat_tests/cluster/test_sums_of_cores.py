"""Sums over cores, and settings of embedding specs: a cluster computes what one process does."""

from __future__ import annotations

import functools
import json
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cluster.tables_on_servers import TABLES, assert_equal, copied, train, values_of
from compat_tests.conftest import Array
from compat_tests.support import local_cluster
from estimator_bridge.legacy.run_config import InputPipelineConfig
from estimator_bridge.runtime.input.feeding import CoreLayout
from estimator_bridge.runtime.step.core_tracing import CoreTracer
from tf2_engine.backends.host import profile

v1 = tf.compat.v1
NUMBERS = (3, 4, 8, 9)
"""AddN adds up to eight terms at once; of nine the first one is a sum by itself."""
SIZE, SCALE = 1000, np.float32(1.1)


def terms_of(count: int) -> list[Array]:
    """Returns terms of which nearly every sum depends on the order."""
    random = np.random.default_rng(count)
    return [random.normal(size=SIZE).astype(np.float32) for _ in range(count)]


def totals(terms: list[Array], overwritable: int, target: str, workers: tuple[str, ...]) -> Any:
    """Returns the sums of all cores, of which one term alone may be overwritten.

    One core adds a term of its own to the sum, which graph optimisation would put among the others.
    """
    with tf.Graph().as_default(), v1.Session(target) as session:
        devices = tuple(workers[core % len(workers)] for core in range(len(terms)))
        fed, inputs = [], []
        for core, device in enumerate(devices):
            with tf.device(device):
                fed.append(v1.placeholder(tf.float32, [SIZE]))
                inputs.append(fed[core] * SCALE if core == overwritable else fed[core])
        cores = CoreLayout(len(terms), InputPipelineConfig.PER_HOST_V1, devices=devices)
        tracer = CoreTracer(cores, [(each, None) for each in inputs])
        with tracer.trace() as (term, _):
            total = v1.tpu.cross_replica_sum(term)
        sums = [total, *(tracer.copy(core, total) for core in range(1, len(terms)))]
        with tf.device(devices[1]):
            sums[1] += fed[1]
        tracer.join()
        return session.run(sums, dict(zip(fed, terms, strict=True)))


def in_order(terms: list[Array], overwritable: int) -> list[Array]:
    """Returns the sums of all cores as numpy adds them."""
    scaled = [term * SCALE if core == overwritable else term for core, term in enumerate(terms)]
    total = functools.reduce(np.add, scaled)
    return [total + terms[1] if core == 1 else total for core in range(len(terms))]


@pytest.mark.parametrize("count", NUMBERS)
def test_cores_are_summed_in_their_order(count: int) -> None:
    """To the bit, whichever term can be overwritten, in one process and over two workers."""
    cluster, terms = local_cluster.start(2, 5), terms_of(count)
    for overwritable in (0, count - 1):
        expected = in_order(terms, overwritable)
        for place in (("", ("/device:CPU:0",)), (cluster.target, cluster.workers)):
            np.testing.assert_array_equal(totals(terms, overwritable, *place), expected)


@pytest.mark.full
@pytest.mark.parametrize("cores, workers", [(3, 3), (4, 2), (8, 2), (9, 3)])
def test_any_number_of_cores_trains_as_in_one_process(
    cores: int, workers: int, tmp_path: pathlib.Path
) -> None:
    """Variables of the model, too, are equal to the bit."""
    first = train(tmp_path / "first", 0, 1, cores=cores)
    alone = train(copied(first, tmp_path / "alone"), 0, 7, cores=cores)
    other = train(copied(first, tmp_path / "other"), 2, 7, workers=workers, cores=cores)
    assert_equal(values_of(other), values_of(alone))


@pytest.mark.full
def test_an_estimator_trains_as_alone(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pipelined, profiled and by mod: all variables, and the profiles, are those of one process.

    Both go on twice, so that what is pending passes through a checkpoint, too.
    """
    # A sample in 33 is counted: too few for a file, unless few are enough.
    monkeypatch.setattr(profile, "MIN_SAMPLES", 2)
    first = train(tmp_path / "first", 0, 1)

    def trained(name: str, servers: int, workers: int) -> tuple[dict[str, Any], dict[str, Any]]:
        folder = copied(first, tmp_path / name)
        settings = {
            "pipeline_execution_with_tensor_core": True,
            "profile_data_directory": str(tmp_path / f"{name}'s profiles"),
            "partition_strategy": "mod",
        }
        for steps in (6, 12):
            path = train(folder, servers, steps, workers=workers, **settings)
        files = (tmp_path / f"{name}'s profiles").glob("*.json")
        profiles = {file.name: json.loads(file.read_text()) for file in files}
        return values_of(path, "mod"), profiles

    variables, profiles = trained("alone", 0, 0)
    assert len(profiles) == len(TABLES)
    of_cluster, profiles_of_cluster = trained("cluster", 3, 2)
    assert_equal(of_cluster, variables)
    assert profiles_of_cluster == profiles

    # Without pipelining the numbers are others: a test that could not tell would prove nothing.
    plain = values_of(train(copied(first, tmp_path / "plain"), 0, 12))
    assert not np.array_equal(plain[TABLES[0]], variables[TABLES[0]])
