"""A TPUEstimator on the software TPU, and estimators under the strategies of a RunConfig."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.programs import clicks, jobs
from compat_tests.support import fresh, tpu_jobs
from estimator_bridge import errors, estimator
from estimator_bridge.legacy import parameters
from estimator_bridge.run import software_tpu

V1 = tf.compat.v1
STEPS = 9
LOOP = 4
NO_NORM = {"batch_norm": False}
"""Cores race for the moving averages of a normalization, on every engine."""


def make(model_dir: Any, engine: str, cores: int, **options: Any) -> Any:
    return jobs.make(
        str(model_dir),
        engine=engine,
        tpu_options={"num_shards": cores, "iterations_per_loop": LOOP},
        model_options=NO_NORM,
        **options,
    )


def same(a: Any, b: Any) -> None:
    """Asserts that two jobs have saved equal values, to the bit."""
    difference, where = jobs.largest_difference(jobs.saved(a), jobs.saved(b))
    assert difference == 0, where


# In the quick tier `verify` compares both, in test_verify_power.py.
@pytest.mark.full
@pytest.mark.parametrize(
    "cores, options",
    [
        (2, {"optimizer": parameters.AdamParameters(0.01)}),
        (1, {}),
        (2, {"spec_options": {"pipeline_execution_with_tensor_core": True}}),
    ],
    ids=["adam, two cores", "one core", "pipelined"],
)
def test_a_software_tpu_computes_what_the_host_does(
    cores: int, options: dict[str, Any], tmp_path: pathlib.Path
) -> None:
    """The software TPU saves, evaluates and predicts what the host does, to the bit.

    Both run the rules of the one numeric core, in the same order; the model is the same graph.
    """
    host = make(tmp_path / "host", "host", cores, **options)
    host.train(clicks.input_fn, steps=STEPS)
    start = jobs.continue_from(jobs.first_checkpoint(host), str(tmp_path / "software_tpu"))
    device = make(start, "software_tpu", cores, **options)
    device.train(clicks.input_fn, steps=STEPS)

    same(host, device)
    assert host.evaluate(clicks.short_input_fn) == device.evaluate(clicks.short_input_fn)
    predicted = [
        np.array([one["p"] for one in job.predict(clicks.short_input_fn)]) for job in (host, device)
    ]
    np.testing.assert_array_equal(*predicted)
    # Each goes on from the other's checkpoint.
    crossed = [
        make(
            jobs.continue_from(job.latest_checkpoint(), str(tmp_path / f"after {name}")),
            name,
            cores,
            **options,
        )
        for job, name in ((device, "host"), (host, "software_tpu"))
    ]
    for job in crossed:
        job.train(clicks.input_fn, steps=2)
    same(*crossed)


class Evaluate(V1.train.SessionRunHook):  # type: ignore[misc]
    """Evaluates a job after each loop of its training."""

    def __init__(self, job: Any) -> None:
        self._job = job

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._job.evaluate(clicks.short_input_fn)


@pytest.mark.full
@pytest.mark.parametrize("disturbed_by", ["evaluations", "the end of the input"])
def test_a_disturbed_training_leaves_its_steps_saved(
    disturbed_by: str, tmp_path: pathlib.Path
) -> None:
    """Evaluations between loops take the software TPU over, and the training takes it back.

    Where an input ends inside a loop, lookups that wait for a batch are ended. The tables are those
    after the last step.
    """
    start = make(tmp_path / "start", "host", 1)
    start.train(clicks.input_fn, steps=1)
    ended = []
    for engine in ("host", "software_tpu"):
        job = make(jobs.continue_from(start.latest_checkpoint(), str(tmp_path / engine)), engine, 1)
        if disturbed_by == "evaluations":
            job.train(clicks.input_fn, steps=STEPS, hooks=[Evaluate(job)])
        else:
            job.train(clicks.short_input_fn, steps=100)
        ended.append(job)

    steps = STEPS if disturbed_by == "evaluations" else 5
    assert jobs.saved(ended[0])["global_step"] == 1 + steps
    same(*ended)


def test_run_decides_on_what_programs_run(tmp_path: pathlib.Path) -> None:
    """Without an `engine` argument only `bridge_on_software_tpu` selects the software TPU."""
    with software_tpu.bridge_on_software_tpu():
        assert "software_tpu engine, 2 cores" in repr(
            jobs.make(str(tmp_path / "a"), tpu_options={"num_shards": 2})
        )
    assert "host engine" in repr(jobs.make(str(tmp_path / "b")))


def test_a_tpu_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.InvalidInput, match=r"`engine`='tpu'.*'software_tpu'"):
        jobs.make(str(tmp_path), engine="tpu")


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("replicas")
    ran = fresh.module("compat_tests.programs.replicas", folder, check=True)
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.full
def test_with_an_engine_the_replicas_of_a_strategy_are_cores(replicas: Any) -> None:
    """With use_tpu=True MirroredStrategy computes to the bit what as many num_shards do.

    Another number of num_shards is refused.
    """
    assert replicas["cores"] == {"difference": 0, "same metrics": True}
    assert "TPUConfig.num_shards=4, but the strategy" in replicas["refused"]
    assert "has 2 replica(s)" in replicas["refused"]


@pytest.mark.full
def test_replicas_train_as_one_with_their_batches_together(replicas: Any) -> None:
    """MirroredStrategy without an engine trains and evaluates as one replica on whole batches."""
    results = replicas["replicas"]

    # Means of halves are rounded otherwise. Adam divides by roots of squares of gradients, so
    # that an element moves by up to its rate, 0.01, whatever the gradient: a unit of a gradient
    # near zero counts most. 1e-5 is a thousandth of one such step.
    assert results["difference"] <= 1e-5
    assert results["parts"] == pytest.approx(results["whole"], abs=1e-5)


@pytest.mark.full
@pytest.mark.stock
def test_replicas_train_as_stocks_do(replicas: Any) -> None:
    results = replicas["replicas"]

    assert results["difference from stock"] == 0
    assert results["parts"] == results["stock"]


@pytest.mark.full
@pytest.mark.parametrize("use_tpu", [True, False])
def test_without_a_tpu_a_strategy_goes_with_any_number_of_shards(
    use_tpu: bool, tmp_path: pathlib.Path
) -> None:
    """With use_tpu=False num_shards has no effect, as stock: programs have both in one config.

    So in an evaluation with eval_on_tpu=False, which has no cores either.
    """

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        variable = V1.get_variable("v", [], initializer=V1.zeros_initializer())
        loss = tf.reduce_mean((features["x"] - variable) ** 2)
        train_op = V1.train.GradientDescentOptimizer(0.1).minimize(loss, V1.train.get_global_step())
        return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def input_fn(params: Any) -> Any:
        return tf.data.Dataset.from_tensors({"x": tf.ones([params["batch_size"]])}).repeat()

    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    config = {"train_distribute": None if use_tpu else strategy, "eval_distribute": strategy}
    options = {"use_tpu": use_tpu, "eval_on_tpu": False}
    job = tpu_jobs.make(model_fn, tmp_path, 4, tpu={"num_shards": 4}, config=config, **options)
    job.train(input_fn, max_steps=2)

    assert job.evaluate(input_fn, steps=1)["global_step"] == 2


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"train_distribute": "mirrored"}, "`train_distribute`='mirrored' cannot run"),
        (
            {"eval_distribute": tf.distribute.experimental.CentralStorageStrategy},
            "`eval_distribute`=.*CentralStorage.*MirroredStrategy",
        ),
    ],
)
def test_other_strategies_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    arguments = {key: value() if callable(value) else value for key, value in settings.items()}
    with pytest.raises(errors.InvalidInput, match=message):
        estimator.Estimator(lambda features: None, config=estimator.RunConfig(**arguments))
