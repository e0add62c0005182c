"""The fused ops give the same results as TensorFlow's, for all inputs, optimizers and threads."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cases import optimizers as cases
from compat_tests.conftest import Engine, Runner
from compat_tests.engine import test_lookup, test_optimizers
from compat_tests.references.tolerance import assert_close
from compat_tests.support import fresh
from compat_tests.support.paths import ROOT
from tf2_engine import OPTIMIZERS, SGD, Adagrad, EngineSpec, FeatureSpec, TableSpec
from tf2_engine.backends import HostDriver
from tf2_engine.backends.host import native_kernels
from tf2_engine.plan import make_plan

HERE = str(ROOT)


def test_optimizers_agree() -> None:
    """After thirty steps in a graph with one core, native ops and TensorFlow's ops agree.

    Both may be off the exact numbers by what so many float32 updates allow, hence twice that.
    test_optimizers.py holds either ops to the references, with all modes and cores.
    """
    group = tuple(row for row in cases.quick() if (row.mode, row.cores) == ("graph", 1))
    fused = test_optimizers.train(group, "native")
    plain = test_optimizers.train(group, "host")

    for number, (actual, expected) in enumerate(zip(fused.tables, plain.tables, strict=True)):
        for place, combination in enumerate(group):
            name = test_optimizers.table_name(place)
            for kind, values in expected[name].items():
                assert_close(
                    values,
                    actual[name][kind],
                    n_terms=2 * cases.BATCH * cases.MOST_IDS,
                    steps=2 * number,
                    scale=max(1.0, float(np.abs(values).max())),
                    where=f"{combination}, after {number} steps, {kind}",
                )


@pytest.mark.parametrize(
    "mode, pairs", [(mode, pairs) for mode, _, pairs, full in test_lookup.engines() if not full]
)
def test_inputs_agree(mode: str, pairs: test_lookup.Pairs) -> None:
    """Every kind of input gives the same activations and rows, to the bit: both add in order."""
    fused = test_lookup.step(mode, pairs, "native")
    plain = test_lookup.step(mode, pairs, "host")

    for place, (name, combiner) in enumerate(pairs):
        where = f"{name}, {combiner}, {mode}"
        feature, table = f"ids{place}", f"table{place}"
        np.testing.assert_array_equal(fused.activations[feature], plain.activations[feature], where)
        np.testing.assert_array_equal(
            fused.after[table]["parameters"], plain.after[table]["parameters"], where
        )


@pytest.mark.parametrize("strategy", ["div", "mod"])
@pytest.mark.parametrize("accumulates", [True, False])
def test_shards_and_cores_agree(strategy: str, accumulates: bool) -> None:
    """Over three hosts of two cores each, rows and slots are the same, to the bit."""
    optimizer = Adagrad(0.5, use_gradient_accumulation=accumulates)
    spec = EngineSpec(
        (TableSpec("table", 11, 5, "mean", optimizer, tf.ones_initializer()),),
        (FeatureSpec("one", "table"), FeatureSpec("two", "table")),
        partition_strategy=strategy,
    )
    chance = np.random.default_rng(5)
    batch = [{n: tf.constant(chance.integers(0, 11, 4)) for n in ("one", "two")} for _ in range(6)]
    sent = [
        {n: tf.constant(chance.uniform(-1, 1, (4, 5)), tf.float32) for n in ("one", "two")}
        for _ in range(6)
    ]
    tables = []
    for fused in (True, False):
        engine = Engine(
            Runner("eager"), spec, num_cores=6, num_hosts=3, driver=HostDriver(native=fused)
        )
        for _ in range(3):
            engine.train(batch, None, sent)
        tables.append(engine.read()["table"])

    for kind, values in tables[1].items():
        assert np.any(values != values[0, 0]), kind
        np.testing.assert_array_equal(tables[0][kind], values, kind)


class New(SGD):
    """A new optimizer, whose rule is not written in C++ yet."""

    proto_field = "new"


def test_what_fits_is_said() -> None:
    """All optimizers fit but Adam that is not lazy, a frequency that is weighted, and new ones."""
    frequency = {
        "learning_rate": lambda: 1.0,
        "tau": 0.5,
        "max_delta": 2.0,
        "outlier_threshold": 2.0,
        "weight_exponent": 0.5,
    }
    settings: dict[str, list[dict[str, Any]]] = {
        "Momentum": [{"momentum": 0.5}],
        "Adam": [{}, {"lazy_adam": False}],
        "FrequencyEstimator": [{**frequency, "weighted": value} for value in (False, True)],
    }
    refused = []
    for kind, optimizer in {**OPTIMIZERS, "New": New}.items():
        for number, arguments in enumerate(settings.get(kind, [{}])):
            table = TableSpec("table", 4, 1, "sum", optimizer(**arguments))
            plan = make_plan(EngineSpec((table,), (FeatureSpec("ids", "table"),)), [(2,)])
            if not native_kernels.supports(plan.tables[0]):
                refused.append((kind, number))

    assert refused == [("Adam", 1), ("FrequencyEstimator", 1), ("New", 0)]


@pytest.mark.parametrize("mode", cases.MODES)
def test_a_table_can_be_fetched_every_step(mode: str) -> None:
    """A value that was read stays as it was; the table moves on, and a reader changes nothing."""
    values = {}
    for fetches in (True, False):
        spec = EngineSpec(
            (TableSpec("table", 6, 2, "sum", Adagrad(0.5), tf.ones_initializer()),),
            (FeatureSpec("ids", "table"),),
        )
        engine = Engine(Runner(mode), spec, driver=HostDriver(native=True))
        engine.build_for([(3,)])
        ids = [{"ids": tf.constant([0, 2, 2], tf.int64)}]
        sent = [{"ids": tf.ones([3, 2])}]
        held = []
        for _ in range(4):
            if fetches:
                table = engine.read()["table"]["parameters"]
                held.append((table, table.copy()))
            engine.train(ids, None, sent)
        for table, copy in held:
            np.testing.assert_array_equal(table, copy, mode)
        assert len({copy.tobytes() for _, copy in held}) == len(held)
        values[fetches] = engine.read()["table"]

    for kind, expected in values[False].items():
        np.testing.assert_array_equal(values[True][kind], expected, f"{mode}, {kind}")


NO_COPY = """
import resource
import tensorflow as tf
from tf2_engine import EngineSpec, FeatureSpec, TableSpec, TPUEmbedding, SGD
from tf2_engine.backends import HostDriver

MIB = 2**20
table = TableSpec("table", 3 * MIB, 64, "sum", SGD(1.0), tf.zeros_initializer())  # 768 MiB
spec = EngineSpec((table,), (FeatureSpec("ids", "table"),))
embedding = TPUEmbedding(spec, driver=HostDriver(native=True))


@tf.function
def step(ids):
    embedding.enqueue({"ids": ids})
    embedding.dequeue()
    embedding.apply_gradients({"ids": tf.ones([4, 64])})


embedding.build_for([(4,)])
variable = embedding.tables["table"].variables["parameters"][0]
ids = tf.constant([0, 1, 1, 5], tf.int64)
for _ in range(2):
    step(ids)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
# Not enough for another copy of the table.
resource.setrlimit(resource.RLIMIT_AS, (used + 512 * MIB, used + 512 * MIB))
for _ in range(3):
    step(ids)
try:
    variable.read_value()
except tf.errors.ResourceExhaustedError:
    print("a copy does not fit,", tf.gather(variable, [1, 5])[:, 0].numpy().tolist())
"""


@pytest.mark.full
def test_an_update_never_copies_the_table() -> None:
    """Updates go on with less memory left than the table takes, in which a copy does not fit."""
    done = subprocess.run(
        [sys.executable, "-c", NO_COPY], cwd=HERE, capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "a copy does not fit, [-10.0, -5.0]"


FETCHES = """
import os
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"  # its allocator keeps what is freed
import tensorflow as tf
from tf2_engine import Adagrad, EngineSpec, FeatureSpec, TableSpec, TPUEmbedding
from tf2_engine.backends import HostDriver

train = tf.compat.v1.train
ROWS, DIM = 2**20, 64  # 256 MiB, and as much for the slot


def tables_of_memory(what):
    with open("/proc/self/status") as file:
        kib = next(int(line.split()[1]) for line in file if line.startswith(what))
    return 1024 * kib / (4 * ROWS * DIM)


class Fetches(train.SessionRunHook):
    def __init__(self, table):
        self.table, self.found = table, []

    def before_run(self, _):
        return train.SessionRunArgs(self.table)

    def after_run(self, _, values):
        self.found.append(float(values.results[1, 0]))


with tf.Graph().as_default():
    start = tf.random_uniform_initializer(-0.5, 0.5)
    table = TableSpec("table", ROWS, DIM, "sum", Adagrad(0.5), start)
    spec = EngineSpec((table,), (FeatureSpec("ids", "table"),))
    embedding = TPUEmbedding(spec, driver=HostDriver(native=True))
    embedding.build_for([(4,)])
    embedding.enqueue({"ids": tf.constant([0, 1, 1, 5], tf.int64)})
    embedding.dequeue()
    step = embedding.apply_gradients({"ids": tf.ones([4, DIM])})
    kinds = embedding.tables["table"].variables
    scaffold = train.Scaffold(
        init_op=tf.group([shard.initializer for kind in kinds.values() for shard in kind]),
        ready_op=tf.constant([], tf.string),
        ready_for_local_init_op=tf.constant([], tf.string),
    )
    hook = Fetches(kinds["parameters"][0].read_value())
    with train.MonitoredSession(train.ChiefSessionCreator(scaffold), [hook]) as session:
        for _ in range(3):
            session.run_step_fn(lambda step_context: step_context.session.run(step))  # no hooks
        before = tables_of_memory("VmRSS")
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak starts anew
        for _ in range(12):
            session.run(step)
        print(tables_of_memory("VmHWM") - before, tables_of_memory("VmRSS") - before, *hook.found)
"""


@pytest.mark.full
def test_a_hook_that_fetches_the_table_takes_one_copy() -> None:
    """While a hook fetches the table every step there is one copy of it, and afterwards none."""
    done = subprocess.run(
        [sys.executable, "-c", FETCHES], cwd=HERE, capture_output=True, text=True, check=True
    )
    peak, stays, *fetched = map(float, done.stdout.split())

    # In tables; what else a step takes is far below a tenth of one.
    assert 0.9 < peak < 1.1
    assert stays < 0.1
    assert len(fetched) == 12
    assert fetched == sorted(fetched, reverse=True)  # the gradient is 2 each time
    assert fetched[-1] < fetched[0]


THREADS = """
import hashlib
import sys
import numpy as np
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
from tf2_engine import Adagrad, EngineSpec, FeatureSpec, TableSpec, TPUEmbedding
from tf2_engine.backends import HostDriver

# Many more ids than one task of the ops takes, on few rows.
tables = tuple(
    TableSpec(f"t{i}", 300, 20, "mean", Adagrad(0.1), tf.constant_initializer(0.1 * i))
    for i in range(2)
)
spec = EngineSpec(tables, (FeatureSpec("f0", "t0"), FeatureSpec("f1", "t1")))
embedding = TPUEmbedding(spec, driver=HostDriver(native=True))
chance = np.random.default_rng(0)
for _ in range(3):
    batch = {}
    for name, count in (("f0", 60000), ("f1", 3000)):
        splits = np.concatenate([[0], np.sort(chance.integers(0, count, 499)), [count]])
        batch[name] = tf.RaggedTensor.from_row_splits(chance.integers(0, 300, count), splits)
    embedding.enqueue(batch)
    found = embedding.dequeue()
    embedding.apply_gradients(
        {name: tf.constant(chance.normal(size=v.shape), tf.float32) for name, v in found.items()})
digest = hashlib.sha256(b"".join(v.numpy().tobytes() for v in found.values()))
for table in embedding.tables.values():
    for (shard,) in table.variables.values():
        digest.update(shard.numpy().tobytes())
print(digest.hexdigest())
"""


def test_threads_do_not_matter() -> None:
    """With one thread and with five, activations, rows and slots are the same to the bit."""
    digests = [fresh.code(THREADS, threads, cwd=HERE, check=True).stdout for threads in (1, 5)]

    assert len(digests[0].strip()) == 64
    assert digests[0] == digests[1]
