"""Strategies with workers in other processes are refused before any table is created.

The exception is ParameterServerStrategy of TensorFlow 2, where parameter servers hold the tables.
Under it, an engine is refused if it was created outside of the strategy, or with the driver for one
process.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from compat_tests.support.paths import ROOT

# Strategies of clusters take a fresh process: a coordinator is connected to its cluster for good.
# Its servers are in this process, so that it needs no others. Every line is a case and its outcome.
PROGRAM = """
import os, socket
import tensorflow as tf
from tf2_engine import SGD, TPUEmbedding, errors, keras, preprocessing

EMB = tf.tpu.experimental.embedding
v1 = tf.compat.v1.distribute.experimental
made = []

def config():
    return {"f": EMB.FeatureConfig(EMB.TableConfig(10, 4, name="words"), name="f")}

def addresses(count):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [f"127.0.0.1:{each.getsockname()[1]}" for each in held]
    for each in held:
        each.close()
    return found

def watch(make, **settings):
    made.append(settings.get("name"))
    return make(**settings)

def say(case, function):
    made.clear()
    try:
        with tf.variable_creator_scope(watch):
            function()
        print(case, "no error", len(made), sep="|")
    except errors.InvalidSpec as error:
        print(case, error, len(made), sep="|")

def says_when_made(case, strategy, **driver):
    with strategy.scope():
        say(f"{case}, engine", lambda: TPUEmbedding(config(), optimizer=SGD(1.0), **driver))
        say(f"{case}, layer", lambda: keras.TPUEmbedding(config(), SGD(1.0)))
        say(f"{case}, layer that only looks up", lambda: keras.TPUEmbedding(config()))

mirrored = tf.distribute.MultiWorkerMirroredStrategy()
says_when_made("mirrored", mirrored)
with mirrored.scope():
    say("a model, mirrored", lambda: keras.TableModel())
with tf.Graph().as_default():
    workers = {"worker": addresses(2)}
    of_workers, of_both = (
        tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(jobs), task_type="worker", task_id=1, rpc_layer="grpc")
        for jobs in (workers, {**workers, "ps": addresses(1)}))
    says_when_made("mirrored v1", v1.MultiWorkerMirroredStrategy(cluster_resolver=of_workers))
    says_when_made("servers v1", v1.ParameterServerStrategy(of_both))

outside = TPUEmbedding(config(), optimizer=SGD(1.0))
worker, ps = addresses(2)
spec = {"worker": [worker], "ps": [ps]}
servers = [tf.distribute.Server(spec, job_name=job, task_index=0) for job in spec]
strategy = tf.distribute.ParameterServerStrategy(
    tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(spec), rpc_layer="grpc"))
with strategy.scope():
    say("servers, named driver", lambda: TPUEmbedding(config(), optimizer=SGD(1.0), driver="host"))
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
step = tf.function(lambda: outside.enqueue({"f": tf.constant([1], tf.int64)}))
say("servers, engine from outside", lambda: coordinator.schedule(step))
with strategy.scope():
    by_keras = keras.TPUEmbedding(config(), tf.keras.optimizers.SGD(1.0))
    column = keras.embedding_column(preprocessing.Identity("f", 10), 4)
    tables = keras.ColumnEmbedding([column], SGD(1.0))
    say("a model, servers", lambda: keras.TableModel(tables))
print("keras arithmetic", *(v.shape for v in by_keras.embedding_tables.values()), sep="|")
os._exit(0)  # The servers never end by themselves.
"""


@pytest.mark.full
def test_an_engine_under_a_strategy_of_several_processes_is_refused() -> None:
    """Engines and layers raise when they are made, before any variable, and in scheduled steps."""
    ran = subprocess.run(
        [sys.executable, "-u", "-c", PROGRAM], capture_output=True, text=True, cwd=ROOT, check=False
    )
    cases = dict(line.split("|", 1) for line in ran.stdout.splitlines() if "|" in line)

    assert ran.returncode == 0, ran.stderr[-4000:]
    assert cases.pop("keras arithmetic") == "(10, 4)"
    for case, strategy in (("servers", "ParameterServer"), ("mirrored", "MultiWorkerMirrored")):
        message, variables = cases.pop(f"a model, {case}").rsplit("|", 1)
        start = f"`TableModel`, a TableModel, is made under {strategy}Strategy, but a"
        assert message.startswith(start), case
        assert "ClusterCoordinator" in message
        assert variables == "0"
    names = ("mirrored", "mirrored v1", "servers v1")
    subjects = ("engine", "layer", "layer that only looks up")
    expected = {f"{name}, {subject}" for name in names for subject in subjects}
    assert set(cases) == {*expected, "servers, named driver", "servers, engine from outside"}
    for case, outcome in cases.items():
        strategy = "MultiWorkerMirrored" if case.startswith("mirrored") else "ParameterServer"
        message, variables = outcome.rsplit("|", 1)
        subject = "`enqueue`" if case.endswith("from outside") else "TPUEmbedding"
        version = " of version 1" if case.startswith("servers v1") else ""
        start = f"{subject} is not possible under {strategy}Strategy{version}: "
        assert message.startswith(start), case
        way_out = 'TF_CONFIG with "chief", "worker" and "ps"'
        if case.startswith("servers,"):
            way_out = "Make the engine inside `strategy.scope()` and leave `driver` out"
        assert way_out in message, case
        assert variables == "0", case
