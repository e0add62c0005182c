"""The engine and its Keras layer under ParameterServerStrategy, compared with one process."""

from __future__ import annotations

import json
import pathlib
import pickle
import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cases.optimizers import KINDS
from compat_tests.cluster import strategy_program as program
from compat_tests.conftest import Runner
from compat_tests.engine.test_parameter_servers import assert_same, combinations, train
from compat_tests.programs import jobs
from compat_tests.support import fresh
from compat_tests.support.cluster_tasks import ClusterTasks
from compat_tests.support.nursery import Nursery
from compat_tests.support.paths import ROOT
from tf2_engine import SGD, EngineSpec, FeatureSpec, TableSpec, TPUEmbedding, errors
from tf2_engine.backends import HostDriver
from tf2_engine.optimizers import OPTIMIZERS
from tf2_engine.placement import LAYOUTS, Layout

PROGRAM = "compat_tests.cluster.strategy_program"


def ran(action: str, folder: pathlib.Path, *arguments: Any) -> pathlib.Path:
    """Runs an action of the program; returns the path of what it left."""
    out = folder / action
    fresh.module(PROGRAM, action, out, *arguments, check=True, cwd=ROOT)
    return out


def on_one_machine(first: int, restored: str | None = None) -> tuple[TPUEmbedding, Any]:
    """Trains an engine as `one_by_one` of the program does; returns it and its checkpoint."""
    embedding = TPUEmbedding(program.feature_config(), driver=HostDriver(native=False))
    checkpoint = tf.train.Checkpoint(embedding=embedding)
    embedding.build_for_batch(program.batch_of(0))
    if restored:
        checkpoint.read(restored).assert_existing_objects_matched()
    else:
        program.set_start(embedding)
    step = program.step_of(embedding)
    for number in range(first, first + program.STEPS):
        step(program.batch_of(number))
    return embedding, checkpoint


@pytest.mark.full
@pytest.mark.parametrize("layout", LAYOUTS)
def test_synchronous_steps_are_those_of_one_process(layout: Layout, tmp_path: pathlib.Path) -> None:
    """Every optimizer, with accumulation and without, in steps of two functions: to the bit.

    Activations and variables after each step are those of one process with two cores; of rules
    with powers up to what `test_parameter_servers` allows. A third of the optimizers is in each
    layout.
    """
    place = LAYOUTS.index(layout)
    kinds = KINDS[place :: len(LAYOUTS)]
    out = ran("numbers", tmp_path, place, ",".join(kinds), layout)

    group = combinations(2, place, kinds)
    expected = train(Runner("graph"), group, HostDriver(native=False))
    assert_same(pickle.loads(out.read_bytes()), expected, group)


def test_every_optimizer_is_in_a_layout() -> None:
    """The thirds of the test above have every optimizer that has a rule."""
    thirds = [kind for place in range(len(LAYOUTS)) for kind in KINDS[place :: len(LAYOUTS)]]
    assert sorted(thirds) == sorted(n for n, kind in OPTIMIZERS.items() if kind.no_rule is None)


@pytest.mark.full
def test_one_function_at_a_time_is_one_process(tmp_path: pathlib.Path) -> None:
    """With one function at a time numbers are those of one process, and so are checkpoints.

    What two parameter servers saved one machine goes on from, and three, to the same rows and
    slots; and a cluster from what one machine saved. A SavedModel serves what the engine looks up.
    """
    rows, path, served = pickle.loads(ran("one_by_one", tmp_path, tmp_path, 2).read_bytes())
    embedding, checkpoint = on_one_machine(0)
    jobs.assert_equal(rows, program.read(embedding))
    lookup = embedding.embedding_lookup(program.batch_of(99))
    jobs.assert_equal(served, tf.nest.map_structure(np.asarray, lookup))
    loaded = tf.saved_model.load(f"{tmp_path}/served-2-{program.STEPS}")
    jobs.assert_equal(
        tf.nest.map_structure(np.asarray, loaded.look_up(program.batch_of(99))), served
    )

    further, _ = on_one_machine(program.STEPS, path)
    of_cluster = pickle.loads(ran("one_by_one", tmp_path, tmp_path, 3, path).read_bytes())
    jobs.assert_equal(of_cluster[0], program.read(further))
    whole = checkpoint.write(f"{tmp_path}/whole")
    of_cluster = pickle.loads(ran("one_by_one", tmp_path, tmp_path, 1, whole).read_bytes())
    jobs.assert_equal(of_cluster[0], program.read(further))


@pytest.mark.full
def test_updates_of_several_workers_do_not_mix(tmp_path: pathlib.Path) -> None:
    """Of a hundred functions that two workers run at the same time no update is lost."""
    results = json.loads(ran("together", tmp_path).read_text())

    # Each looks up [0, 1, 1, 2 or 3], and adds one to a row for each time that it is looked up.
    expected = np.repeat([[100.0], [200.0], [50.0], [50.0]], 2, axis=1)
    np.testing.assert_array_equal(results["rows"], expected)
    assert results["repr"] == (
        "<TPUEmbedding 1 tables, <StrategyPsDriver 1 tables, 2 servers, div, asynchronous>, built>"
    )


@pytest.mark.full
def test_a_core_counts_once_in_a_step(tmp_path: pathlib.Path) -> None:
    """A function that runs again takes the place of its first run; a core must not be missing."""
    results = json.loads(ran("run_again", tmp_path).read_text())

    # Steps of SGD with the rate 1: 1 + 2, then 4 + 8, then 16 + 32.
    assert [np.unique(rows).tolist() for rows in results["rows"]] == [[-3.0], [-15.0], [-63.0]]
    assert "core 0 of 2 sent no gradients" in results["missing"]
    assert "cores 0, 1 of 2 sent no gradients" in results["dropped"]
    assert "`core` must be from 0 to 1, the cores of a synchronous step" in results["no core"]
    assert "inside a tf.function" in results["in a function"]


@pytest.mark.full
def test_the_layer_trains_on_parameter_servers(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`fit` of Keras 2 and scheduled functions with the layer train as `fit` on one machine."""
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    results = pickle.loads(ran("keras_fit", tmp_path, tmp_path).read_bytes())

    assert results["devices"] == [f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(2)]
    jobs.assert_equal(results["looped"], results["fitted"])
    assert results["predictions"] == program.STEPS * program.BATCH
    assert np.isfinite(results["metrics"])
    embedding = TPUEmbedding(program.feature_config(), driver=HostDriver(native=False))
    embedding.build_for_batch(program.batch_of(0))
    program.set_start(embedding)
    for number in range(program.STEPS):
        with tf.GradientTape() as tape:
            embedding.enqueue(program.batch_of(number))
            activations = embedding.dequeue()
            tape.watch(activations)
            total = sum(tf.reduce_sum(each, -1, keepdims=True) for each in activations.values())
            loss = tf.reduce_mean(tf.square(total - 1.0))
        embedding.apply_gradients(tape.gradient(loss, activations))
    for key, rows in program.read(embedding).items():
        np.testing.assert_allclose(results["fitted"][key], rows, 0, OF_THE_MODEL, err_msg=str(key))


OF_THE_MODEL = 1e-5
"""The sums over 11 numbers below 4 of a sample, and the mean over 8 samples, may be in another
order in a compiled function: 20 * 6e-8 * 4 = 5e-6 in the gradient, which 4 steps with rates up to
0.1 scale down; Adam and Adagrad divide by its size, which is above 0.1."""


REFUSED = {
    "pipelined": "`pipeline_execution_with_tensor_core`=True",
    "profiled": "`profile_data_directory`='folder'",
    "cores": "`synchronous`=2 if 2 functions should form one step",
    "hosts": "`num_hosts`=2: parameter servers hold the rows",
    "none": "`synchronous` must be positive, got 0",
    "eager": "in one tf.function, and pass it to `ClusterCoordinator.schedule`",
    "device": "`device`='/device:CPU:0'",
    "differentiable": "which core of a synchronous step",
    "core missing": "`core` is missing: the engine has synchronous=2",
    "core beyond": "`core`=2 is out of range: a step has 2 cores, 0 to 1",
    "core between": "`core` must be an int or a scalar integer tensor, got 0.5",
    "core of none": "`core`=0 is for synchronous steps",
    "no step": "`apply_step` is for synchronous steps",
    "outside": "driver='ps' needs a tf.distribute.ParameterServerStrategy",
    "synchronous outside": "`synchronous`=2 is for functions that a ClusterCoordinator schedules",
}


@pytest.mark.full
def test_what_is_refused_under_the_strategy(tmp_path: pathlib.Path) -> None:
    results = json.loads(ran("refusals", tmp_path).read_text())

    assert set(results) == set(REFUSED)
    for name, words in REFUSED.items():
        assert words in results[name], (name, results[name])


@pytest.mark.soak
@pytest.mark.parametrize("synchronous", [True, False])
def test_a_killed_worker_is_missed_by_no_step(synchronous: bool, tmp_path: pathlib.Path) -> None:
    """Workers are killed and started again while a program trains.

    Synchronous steps end as in one process, to the bit. Others have each update at least once, and
    those of the functions that were lost with a worker at most once more.
    """
    out, steps = tmp_path / "rows", 300
    nursery = Nursery("compat_tests.cluster.strategy_program")
    arguments = ["steady", out, synchronous, steps]
    tasks = ClusterTasks(
        nursery, tmp_path, lambda job, _: (PATH, arguments if job == "chief" else ["serve"])
    )

    def reached(step: int) -> bool:
        progress = tmp_path / "rows.progress"
        return progress.exists() and int(progress.read_text() or 0) >= step

    try:
        tasks.start_all(worker=2, ps=2, chief=1)
        for worker, step in ((1, 20), (0, 120)):
            tasks.wait_until(lambda step=step: reached(step), 240)
            tasks.running["worker", worker].kill()
            time.sleep(1)
            tasks.start("worker", worker)
        tasks.wait(300, "chief")
    finally:
        tasks.kill()
        nursery.close()
    rows = pickle.loads(out.read_bytes())
    if synchronous:
        jobs.assert_equal(rows, program.read(on_two_cores(steps)))
    else:
        counts = rows["t", "parameters"][:, 0]
        assert counts.min() == 1
        assert counts.sum() - steps <= 2


PATH = pathlib.Path(program.__file__)


def on_two_cores(steps: int) -> TPUEmbedding:
    """Trains as `steady` of the program does, in one process with two cores."""
    driver = HostDriver(native=False)
    embedding = TPUEmbedding(program.feature_config(), driver=driver, num_cores=2)
    embedding.build_for_batch(program.batch_of(0))
    program.set_start(embedding)

    @tf.function(autograph=False, reduce_retracing=True)
    def run(batches: Any) -> None:
        embedding.enqueue(batches)
        activations = embedding.dequeue()
        embedding.apply_gradients([program.gradients_of(each) for each in activations])

    for step in range(steps):
        run([program.batch_of(2 * step), program.batch_of(2 * step + 1)])
    return embedding


def test_settings_of_the_strategy_are_refused_elsewhere() -> None:
    table = TableSpec("t", 4, 2, "sum", SGD(1.0))
    spec = EngineSpec((table,), (FeatureSpec("ids", "t"),))
    with pytest.raises(errors.InvalidSpec, match=r"driver='ps' needs a tf\.distribute\.Parameter"):
        TPUEmbedding(spec, driver="ps")
    with pytest.raises(errors.InvalidSpec, match="`synchronous`=2 is for functions"):
        TPUEmbedding(spec, synchronous=2)
    embedding = TPUEmbedding(spec)
    embedding.build_for([(None,)])
    with pytest.raises(errors.InvalidInput, match="`core`=0 is for synchronous steps"):
        embedding.apply_gradients({"ids": tf.ones([1, 2])}, core=0)
    with pytest.raises(errors.OutOfOrder, match="`apply_step` is for synchronous steps"):
        embedding.apply_step()
