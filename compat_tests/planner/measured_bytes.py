"""Prints, as JSON, the bytes of steps on parameter servers over loopback, and what was planned.

Run it in a network of its own, or it counts what others send; `test_measured_bytes` does.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from compat_tests.support import local_cluster
from estimator_bridge.planner.job import Job, TableLoad, sampled_load
from estimator_bridge.planner.step_time import Coefficients, Wire, core_traffic, step_bytes
from tf2_engine import Adagrad, TPUEmbedding
from tf2_engine.backends import PsDriver
from tf2_engine.placement import Layout, TableSize, place_tables
from tf2_engine.types import Array

v1 = tf.compat.v1
WARM, STEPS = 3, 10


class Case(NamedTuple):
    """Tables by rows and dim; features by table and ids of a sample."""

    tables: dict[str, tuple[int, int]]
    features: dict[str, tuple[str, int]]
    samples: int
    workers: int
    servers: int
    layout: Layout
    wire: Wire = "smallest"
    native: bool = False


CASES = (
    Case(
        {"big": (20_001, 16), "small": (503, 8)},
        {"one": ("big", 1), "many": ("big", 5), "other": ("small", 1)},
        *(64, 2, 2, "div"),
    ),
    Case(
        {"big": (100_001, 64), "small": (503, 8)},
        {"one": ("big", 1), "many": ("big", 5), "other": ("small", 1)},
        *(1024, 2, 2, "octaves", "smallest", True),
    ),
    Case(
        {"big": (20_001, 64)},
        {"one": ("big", 1), "many": ("big", 20)},
        *(128, 2, 2, "div", "cells", True),
    ),
    Case(
        {"big": (20_001, 64), "small": (503, 8)},
        {"many": ("big", 20), "other": ("small", 1)},
        *(128, 2, 2, "div", "summed", True),
    ),
    Case(
        {f"t{i}": (20_000, 16) for i in range(4)},
        {f"f{i}": (f"t{i}", 1 + i) for i in range(4)},
        *(128, 4, 4, "mod"),
    ),
)


class Bytes(NamedTuple):
    """The bytes of a step: as planned from its ids, as counted, and the most that it may send."""

    planned: float
    measured: float
    bound: float


def bytes_of(case: Case) -> Bytes:
    random = np.random.default_rng(0)
    ids = [{name: _draw(random, case, name) for name in case.features} for _ in range(case.workers)]
    loads = []
    for table, (rows, dim) in case.tables.items():
        users = [name for name, (used, _) in case.features.items() if used == table]
        steps = [
            np.concatenate([of_worker[name][step].ravel() for name in users])
            for of_worker in ids
            for step in range(WARM, WARM + STEPS)
        ]
        samples = float(case.samples)
        load = sampled_load(rows, steps)
        of_users = tuple((samples, samples * case.features[name][1]) for name in users)
        size = TableSize(table, rows, dim, 2)
        loads.append(TableLoad(size, load, samples * len(users), features=of_users))
    job = Job("a case", tuple(loads), case.samples, "drawn")
    placement = place_tables(job.sizes, case.servers, layout=case.layout)
    traffic = core_traffic(job, placement, wire=case.wire)
    planned = step_bytes(traffic, case.workers, Coefficients())
    tensors = float(traffic.tensors.sum())
    bound = case.workers * (1.05 * traffic.payload + 700 * tensors) + 5000
    return Bytes(planned, _measure(case, ids), bound)


def _draw(random: np.random.Generator, case: Case, feature: str) -> Array:
    table, count = case.features[feature]
    drawn = random.zipf(1.2, (WARM + STEPS, case.samples, count)) - 1
    return np.minimum(drawn, case.tables[table][0] - 1).astype(np.int64)


def _measure(case: Case, ids: list[dict[str, Array]]) -> float:
    cluster = local_cluster.start(case.workers, case.servers)
    places = cluster.workers, cluster.servers
    native = [*cluster.workers, *cluster.servers] if case.native else []
    emb = tf.tpu.experimental.embedding
    with tf.Graph().as_default():
        tables = {
            name: emb.TableConfig(rows, dim, combiner="sum", name=name, optimizer=Adagrad(0.1))
            for name, (rows, dim) in case.tables.items()
        }
        features = {
            name: emb.FeatureConfig(tables[table], name=name)
            for name, (table, _) in case.features.items()
        }
        driver = PsDriver(*places, layout=case.layout, wire=case.wire, native=lambda: native)
        engine = TPUEmbedding(features, driver=driver, num_cores=case.workers)
        inputs, initializers, gradients = [], [], []
        for device, of_worker in zip(cluster.workers, ids, strict=True):
            with tf.device(device):
                batches = tf.data.Dataset.from_tensor_slices(of_worker)
                iterator = v1.data.make_initializable_iterator(batches)
                initializers.append(iterator.initializer)
                inputs.append({k: _sparse(v) for k, v in iterator.get_next().items()})
        enqueued = engine.enqueue(inputs)
        for device, of_core in zip(cluster.workers, engine.dequeue(), strict=True):
            with tf.device(device):
                gradients.append({name: 0.01 * each for name, each in of_core.items()})
        ops = [enqueued, engine.apply_gradients(gradients)]
        step = tf.group(*[op for op in ops if op is not None])
        config = v1.ConfigProto(allow_soft_placement=False)
        with v1.Session(cluster.target, config=config) as session:
            session.run(v1.global_variables_initializer())
            session.run(initializers)
            for _ in range(WARM):
                session.run(step)
            before = _loopback()
            for _ in range(STEPS):
                session.run(step)
            return (_loopback() - before) / STEPS


def _sparse(ids: tf.Tensor) -> tf.SparseTensor:
    shifted = tf.sparse.from_dense(ids + 1)  # It leaves zeros out.
    return tf.SparseTensor(shifted.indices, shifted.values - 1, shifted.dense_shape)


def _loopback() -> int:
    lines = pathlib.Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split()[9]) for line in lines if line.strip().startswith("lo:"))


if __name__ == "__main__":
    sys.stdout.write(f"RESULT {json.dumps([bytes_of(case) for case in CASES])}\n")
    sys.stdout.flush()
    os._exit(0)  # The servers never end.
