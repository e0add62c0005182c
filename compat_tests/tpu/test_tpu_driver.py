"""What the TPU driver does besides building stock's graphs: shards, eager calls, topologies."""

from __future__ import annotations

import dataclasses

import pytest
import tensorflow as tf

import tf2_engine
from compat_tests.support import fake_tpu
from compat_tests.support.tpu_programs import (
    BATCH,
    Case,
    Ours,
    built,
    core_shapes,
    host,
    inputs,
    plan_of,
    sparse,
    step_inputs,
    topology,
)
from tf2_engine import errors, tf_compat
from tf2_engine.backends.tpu import topology as tpu_topology
from tf2_engine.backends.tpu.driver import TpuDriver
from tf2_engine.plan import make_plan
from tf2_engine.tables import create_tables, variable_factory

VIDEOS = tf2_engine.TableSpec("videos", 9, 4, optimizer=tf2_engine.SGD(1.0))


@pytest.mark.parametrize("hosts, devices", [(None, ["", ""]), ([host(0), host(1)], [host(0)])])
def test_emulated_hosts_alone_have_rows_beyond_the_vocabulary(
    hosts: list[str] | None, devices: list[str]
) -> None:
    """Emulated hosts pad the table to whole rows per host; hosts of a TPU do not."""
    table = dataclasses.replace(VIDEOS, vocabulary_size=1)
    plan = plan_of(table, num_hosts=2, num_cores=2)
    with tf.Graph().as_default():
        tables = create_tables(plan, variable_factory(hosts))

    shards = tables["videos"].variables["parameters"]
    assert [shard.device for shard in shards] == devices
    assert all(shard.shape.as_list() == [1, 4] for shard in shards)


def test_eagerly_the_device_is_asked_configured_and_loaded() -> None:
    """Eagerly verbs take effect at once, in stock's order; the same tables are traced once."""
    strategy = fake_tpu.strategy(1, 2, job="localhost")
    with tf.Graph().as_default():
        shapes = core_shapes(inputs(("dense", "sparse"), 2), None)
    with fake_tpu.recorded() as recorded:
        ours = Ours(Case(kinds=("dense", "sparse")), strategy, shapes)
        built_by = [name for name, _ in recorded]
        later = []
        for tables in (ours.tables, ours.tables, dict(ours.tables)):
            recorded.clear()
            ours.driver.load(tables)
            later.append([name for name, _ in recorded])

    loads = [
        "LoadTPUEmbeddingAdagradParameters",
        "LoadTPUEmbeddingStochasticGradientDescentParameters",
    ]
    assert built_by == ["IsTPUEmbeddingInitialized", "ConfigureTPUEmbedding", *loads]
    # The first of these is traced since it is no longer in the scope of the strategy.
    assert later == [loads, [], loads]


def test_a_tensor_chooses_the_mode_when_the_step_runs() -> None:
    """`training` may be a tensor: the op gets one of two modes when the step runs."""
    with tf.Graph().as_default() as graph:
        ours = built(Case(kinds=("dense",)), fake_tpu.strategy(1, 2, job="localhost"))
        training = tf.compat.v1.placeholder(tf.bool, [])
        ids = tf.zeros([BATCH], tf.int64)
        with fake_tpu.recorded() as recorded:
            ours.driver.enqueue(step_inputs([ids], [ids]), training)
        modes = [arguments["mode_override"] for _, arguments in recorded]
        with tf.compat.v1.Session(graph=graph) as session:
            chosen = [session.run(modes, {training: value}) for value in (True, False)]

    assert chosen == [[b"train"] * 2, [b"inference"] * 2]


def test_a_plan_for_lookups_loads_initial_slots_and_retrieves_nothing() -> None:
    """Without training there are no slot variables; the device gets what slots start with."""
    optimizer = tf2_engine.Adagrad(1.0, initial_accumulator_value=0.75)
    table = dataclasses.replace(VIDEOS, optimizer=optimizer)
    spec = tf2_engine.EngineSpec((table,), (tf2_engine.FeatureSpec("watched", "videos"),))
    plan = make_plan(spec, [(BATCH,)], training=False)
    with tf.Graph().as_default() as graph, fake_tpu.recorded() as recorded:
        driver = TpuDriver(topology(job="localhost"))
        driver.configure(plan)
        tables = create_tables(plan)
        driver.load(tables)
        driver.retrieve(tables)
        with tf.compat.v1.Session(graph=graph) as session:
            slots = session.run(recorded[-1][1]["accumulators"])

    assert [name for name, _ in recorded][2:] == ["LoadTPUEmbeddingAdagradParameters"]
    assert slots.shape == (9, 4)
    assert (slots == 0.75).all()


# The topology.


def test_a_strategy_that_stands_in_for_a_tpu_has_a_core_per_worker() -> None:
    """Devices that a strategy does not group by replica are one core each."""

    class Extended:
        worker_devices = ("/device:CPU:0", "/device:CPU:1")

    class StandIn:
        extended = Extended()

    devices, cores_per_replica = tf_compat.tpu_devices(StandIn())
    assert devices == [["/device:CPU:0"], ["/device:CPU:1"]]
    assert cores_per_replica is None


def test_what_is_not_distributed_is_the_same_for_every_replica() -> None:
    """A nest comes apart into one per replica, whatever its leaves are."""
    strategy = fake_tpu.strategy(1, 2)
    with tf.Graph().as_default():
        values = [sparse(tf.int64, "first"), sparse(tf.int64, "second")]
        nest = {"own": fake_tpu.distribute(strategy, values), "same": values[0], "none": None}
        replicas = tpu_topology.per_replica(strategy, nest)

    assert [replica["own"] for replica in replicas] == values
    assert [replica["same"] for replica in replicas] == [values[0]] * 2
    assert [replica["none"] for replica in replicas] == [None] * 2
    assert tpu_topology.per_replica(strategy, nest["own"]) == values


def test_a_device_names_its_core() -> None:
    """A core is named in full or in part, as long as it is one."""
    cores = topology(2, 4)
    assert cores.core_of("/job:worker/replica:0/task:1/device:TPU:2") == 6
    assert cores.core_of("/task:1/device:TPU:2") == 6
    assert topology(1, 4).core_of("TPU:3") == 3
    with pytest.raises(errors.InvalidInput, match=r"'TPU:3' matches several of the TPU's cores"):
        cores.core_of("TPU:3")
    with pytest.raises(errors.InvalidInput, match=r"task:2.*matches none of the TPU's cores"):
        cores.core_of("/task:2/device:TPU:0")
