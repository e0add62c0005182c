"""Numbers of cores, what a core can query, and models that a TPU would split over cores.

If no core is emulated, a sum over cores is that of a single replica.
"""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.support import tpu_jobs
from estimator_bridge import errors, estimator
from estimator_bridge.defaults import CORES_VARIABLE, DEFAULTS
from estimator_bridge.runtime.estimator import cores_and_hosts

tf1 = tf.compat.v1
Config = estimator.tpu.TPUConfig
V2 = estimator.tpu.InputPipelineConfig.PER_HOST_V2
BATCH, SIZE = 4, 3


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Sets the cores that there are where a program does not say."""
    monkeypatch.delenv(CORES_VARIABLE, raising=False)
    yield lambda count: setattr(DEFAULTS, "cores", count)
    DEFAULTS.cores = None


class Model:
    """A linear model that records what its functions are told.

    Attributes:
        told: the params of each call of the model_fn.
    """

    def __init__(self, across: Any = None) -> None:
        self.params_of_calls: list[dict[str, Any]] = []
        self._across = across

    def __call__(self, features: Any, labels: Any, mode: str, params: Any) -> Any:
        self.params_of_calls.append(params)
        weights = tf1.get_variable("w", [SIZE], initializer=tf1.ones_initializer())
        outputs = features["x"] * weights
        target = 0.0 if labels is None else labels
        loss = tf.reduce_mean(tf.square(outputs - target))
        across = tf1.tpu.cross_replica_sum(weights if self._across is None else self._across())
        predictions = {"y": outputs, "across": tf.zeros_like(outputs) + tf.cast(across, tf.float32)}
        loss += 0.0 * tf.reduce_sum(tf.cast(across, tf.float32))
        return tpu_jobs.spec(mode, loss, 0.5, predictions=predictions)


def input_fn(params: Any) -> Any:
    """Returns ones, and zeros as labels."""
    size = params["batch_size"]
    features = {"x": np.ones((size, SIZE), np.float32)}
    return tf1.data.Dataset.from_tensors((features, np.zeros((size, SIZE), np.float32))).repeat()


def make(model: Any, config: Any, tmp_path: pathlib.Path, use_tpu: bool = True) -> Any:
    return tpu_jobs.make(
        model, tmp_path / "job", BATCH, config={"tpu_config": config}, use_tpu=use_tpu
    )


def trained(w: float, steps: int) -> float:
    """Returns the weight after steps of w - 0.5 * 2 w / SIZE."""
    return w * (1 - 1 / SIZE) ** steps


def test_sums_over_cores_are_of_one_replica_without_a_tpu(tmp_path: pathlib.Path) -> None:
    """With use_tpu=False a model sums over one core, in every mode; stock cannot run it."""
    job = make(Model(), Config(num_shards=2), tmp_path, use_tpu=False)
    job.train(input_fn, steps=2)
    weight = trained(1.0, 2)
    assert np.allclose(job.get_variable_value("w"), weight, rtol=1e-6)
    assert np.isclose(job.evaluate(input_fn, steps=1)["loss"], weight**2, rtol=1e-6)
    assert np.allclose(next(job.predict(input_fn))["across"], weight, rtol=1e-6)

    def receiver() -> Any:
        fed = tf1.placeholder(tf.float32, [None, SIZE])
        return estimator.export.ServingInputReceiver({"x": fed}, {"x": fed})

    path = job.export_saved_model(str(tmp_path / "export"), receiver).decode()
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.saved_model.load(session, ["serve"], path)
        types = {op.type for op in session.graph.get_operations()}
    assert "CrossReplicaSum" not in types


@pytest.mark.parametrize("use_tpu", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_core_knows_its_number(use_tpu: bool, tmp_path: pathlib.Path) -> None:
    """`xla.replica_id()` is the number of the core, the first one's without a TPU.

    TensorFlow's op ends the process on a CPU.
    """
    from tf2_engine import tf_compat

    def square() -> Any:
        return (tf_compat.replica_id() + 2) ** 2

    job = make(Model(square), Config(num_shards=2), tmp_path, use_tpu)
    job.train(input_fn, steps=1)

    sums = next(job.predict(input_fn))["across"]
    assert sums.tolist() == [2**2 + 3**2 if use_tpu else 2**2] * SIZE


def test_cores_are_those_that_there_are(cores: Any, tmp_path: pathlib.Path) -> None:
    """Without `num_shards` a job uses all cores; a `num_shards` of that number is no error."""
    cores(2)
    model = Model()
    job = make(model, Config(per_host_input_for_training=V2), tmp_path)
    job.train(input_fn, steps=1)

    assert [params["batch_size"] for params in model.params_of_calls] == [BATCH // 2]
    assert "2 cores" in repr(job)
    assert "2 cores" in repr(make(model, Config(num_shards=2), tmp_path))
    assert "1 cores" in repr(make(model, Config(num_cores_per_replica=2), tmp_path))


def test_cores_come_from_the_environment(cores: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An option comes before the environment; what is no number is refused."""
    monkeypatch.setenv(CORES_VARIABLE, "8")
    assert cores_and_hosts.num_replicas(Config()) == 8
    assert cores_and_hosts.num_replicas(Config(num_cores_per_replica=4)) == 2
    cores(4)
    assert cores_and_hosts.num_replicas(Config()) == 4
    cores(None)
    monkeypatch.setenv(CORES_VARIABLE, "many")
    with pytest.raises(errors.InvalidInput, match=r"\$ESTIMATOR_BRIDGE_CORES='many' must be"):
        cores_and_hosts.num_replicas(Config())


@pytest.mark.parametrize(
    "config, words",
    [
        (Config(num_shards=4), "num_shards is not set correctly: it is 4, but 2 core"),
        (Config(num_cores_per_replica=4), "num_cores_per_replica=4 does not divide the 2 core"),
        (Config(num_shards=2, num_cores_per_replica=2), "enough for 1 replica"),
    ],
)
def test_cores_that_contradict_the_program_are_refused(config: Any, words: str, cores: Any) -> None:
    cores(2)
    with pytest.raises(ValueError, match=words):
        cores_and_hosts.num_replicas(config)


def parallel(**settings: Any) -> Any:
    """Returns a config with two cores for each of two replicas."""
    return Config(**{"num_shards": 2, "num_cores_per_replica": 2, **settings})


def test_a_split_model_runs_whole(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each replica computes the same as without model parallelism; one log line says so."""
    caplog.set_level(logging.INFO, "tensorflow")
    model = Model()
    dims = [{"x": [1, 2]}, [2, 1]]
    config = parallel(input_partition_dims=dims, per_host_input_for_training=V2)
    job = make(model, config, tmp_path)
    job.train(input_fn, steps=2)
    job.evaluate(input_fn, steps=1)

    assert np.allclose(job.get_variable_value("w"), trained(1.0, 2), rtol=1e-6)
    assert caplog.text.count("the model and its input are not split over these cores") == 1
    assert [params["batch_size"] for params in model.params_of_calls] == [BATCH // 2] * 2
    assignment = model.params_of_calls[0]["context"].device_assignment
    assert isinstance(assignment, tf.tpu.experimental.DeviceAssignment)
    assert (assignment.num_replicas, assignment.num_cores_per_replica) == (2, 2)


@pytest.mark.parametrize("per_replica", [1, 2, 4, 8, 16, 32, 64, 128])
def test_replicas_have_cores_of_their_own(per_replica: int) -> None:
    assignment = cores_and_hosts.device_assignment(3, per_replica)
    cores = assignment.core_assignment.reshape(-1, 4)

    assert assignment.core_assignment.shape == (3, per_replica, 4)
    assert len({tuple(core) for core in cores}) == 3 * per_replica
    assert assignment.topology.num_tasks == 1


@pytest.mark.parametrize(
    "dims, words",
    [
        ([{"y": [1, 2]}], r"mismatched feature keys. Expected \['x'\], got \['y'\]"),
        ([[1, 2]], "mismatched feature keys"),
        ([{"x": [0, 2]}], "All input partition dims must be >= 1"),
        ([{"x": [2, 2]}], "The product of each input partition dim should equal to"),
        ([{"x": [2]}], "must have the same number of dimensions"),
        ([{"x": None}, {"z": [1, 2]}], "mismatched label keys"),
    ],
)
def test_partitions_that_do_not_fit_are_refused(dims: Any, words: str) -> None:
    """Partitions that do not fit are refused in the words of stock's errors, with the values."""
    config = parallel(input_partition_dims=dims, per_host_input_for_training=V2)
    batch = tf.TensorSpec([BATCH, SIZE])
    check = cores_and_hosts.with_checked_partition(lambda features, labels: None, config)

    with pytest.raises(ValueError, match=words):
        check({"x": batch}, batch)


@pytest.mark.full
def test_a_job_refuses_partitions_that_do_not_fit(tmp_path: pathlib.Path) -> None:
    config = parallel(input_partition_dims=[{"x": [2, 2]}], per_host_input_for_training=V2)
    model = Model()

    with pytest.raises(ValueError, match="The product of each input partition dim"):
        make(model, config, tmp_path).train(input_fn, steps=1)
    assert not model.params_of_calls


def test_a_split_model_needs_input_per_host(tmp_path: pathlib.Path) -> None:
    config = parallel(per_host_input_for_training=False)

    with pytest.raises(ValueError, match="Model parallelism only supports per host input"):
        make(Model(), config, tmp_path)
