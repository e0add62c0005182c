"""Each worker reads the input for its own cores, as each host of a TPU pod does."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import pytest
import tensorflow as tf

from compat_tests.programs import jobs
from compat_tests.support.cluster_tasks import PATIENCE, SERVE, ClusterTasks, Command
from compat_tests.support.nursery import Nursery
from estimator_bridge.defaults import INPUT_HOSTS_VARIABLE

PROGRAM = pathlib.Path(__file__).with_name("inputs.py")
KINDS = ("the same", "per core", "in Python", "ending")
COUNTS = {"chief": 1, "worker": 2, "ps": 2}


class Run:
    """The logs, model_dirs and results of one run of the program."""

    def __init__(self, folder: pathlib.Path, log: str) -> None:
        self._folder = folder
        self.log = (folder / log).read_text(errors="replace")
        lines = [line for line in self.log.splitlines() if line.startswith("RESULT ")]
        self.results: Mapping[str, Mapping[str, Any]] = json.loads(lines[-1][len("RESULT ") :])

    def variables(self, kind: str) -> dict[str, Any]:
        """Returns the variables of the last checkpoint of a training, by name."""
        return jobs.saved(None, tf.train.latest_checkpoint(str(self._folder / "model" / kind)))


def in_one_process(nursery: Nursery, folder: pathlib.Path, **environment: str) -> Run:
    task = nursery.start(PROGRAM, [folder / "model"], folder / "log", environment)
    assert task.wait(PATIENCE) == 0, task.tail()
    return Run(folder, "log")


@pytest.fixture(scope="module")
def alone(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run of one process that reads as two hosts."""
    return in_one_process(nursery, tmp_path_factory.mktemp("alone"), **{INPUT_HOSTS_VARIABLE: "2"})


class OnCluster(Run):
    """A run of a chief, two workers and two parameter servers; and their processes."""

    def __init__(
        self, nursery: Nursery, folder: pathlib.Path, environment: Mapping[str, str]
    ) -> None:
        (folder / "serve.py").write_text(SERVE)

        def command(job: str, number: int) -> Command:
            return (PROGRAM, [folder / "model"]) if job == "chief" else (folder / "serve.py", [])

        tasks = ClusterTasks(nursery, folder, command, environment)
        tasks.start_all(**COUNTS)
        tasks.wait(PATIENCE)
        super().__init__(folder, "chief0.log")
        self.workers = [tasks.running["worker", index].pid for index in range(COUNTS["worker"])]


@pytest.fixture(scope="module")
def cluster(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> OnCluster:
    """A cluster on which each worker reads its own input, also where the input_fn ignores hosts."""
    environment = {INPUT_HOSTS_VARIABLE: "2"}
    return OnCluster(nursery, tmp_path_factory.mktemp("cluster"), environment)


@pytest.fixture(scope="module")
def one_host(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run of one process that is one host."""
    return in_one_process(nursery, tmp_path_factory.mktemp("one_host"))


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_workers_read_as_the_hosts_of_one_process(
    kind: str, alone: Run, cluster: OnCluster
) -> None:
    """All variables and the evaluation are equal, and each host has read for itself.

    In the order of its own where the order is random, and with the end of the data of one host.
    """
    jobs.assert_equal(cluster.variables(kind), alone.variables(kind))
    assert alone.variables(kind)["global_step"] == (3 if kind == "ending" else 6)
    of_one, of_other = alone.results[kind], cluster.results[kind]
    if kind == "per core":
        assert of_other["loss"] == of_one["loss"]
    chief = of_other["process"]
    first, second = (chief, chief) if kind == "in Python" else cluster.workers
    assert of_other["processes"] == [first, first, second, second]
    assert of_one["processes"] == [of_one["process"]] * 4


@pytest.mark.full
def test_warnings_name_the_input(alone: Run, cluster: OnCluster) -> None:
    """One names the input that all hosts read alike, one the bytes that the chief sends."""
    for run in (alone, cluster):
        (line,) = [each for each in run.log.splitlines() if "all hosts read the same data" in each]
        assert "The input_fn the_same is called for each of 2 hosts" in line
    (line,) = [each for each in cluster.log.splitlines() if "calls Python" in each]
    assert "The input_fn in_python calls Python (op 'FlatMapDataset'" in line
    # For each of 16 samples 5 ids with an index and the shape of their core, label and process.
    ids = 16 * 5 * (8 + 16) + 4 * 16
    assert f"The chief sends the workers {ids + 16 * (4 + 4):,} bytes per step." in line
    assert "calls Python" not in alone.log


@pytest.mark.full
def test_workers_read_where_the_input_asks_for_its_host(
    nursery: Nursery, one_host: Run, tmp_path: pathlib.Path
) -> None:
    """The chief calls an input_fn that does not ask, with the numbers of one host."""
    run = OnCluster(nursery, tmp_path, {})
    for kind in ("the same", "per core", "ending"):
        reading = {*run.results[kind]["processes"]}
        assert reading == ({run.results[kind]["process"]} if kind == "the same" else {*run.workers})
    jobs.assert_equal(run.variables("the same"), one_host.variables("the same"))
    assert "all hosts read the same data" not in run.log


@pytest.mark.full
def test_the_chief_reads_for_all(nursery: Nursery, one_host: Run, tmp_path: pathlib.Path) -> None:
    """With one host of two workers the chief reads, with the numbers of one host."""
    on_cluster = OnCluster(nursery, tmp_path, {INPUT_HOSTS_VARIABLE: "1"})
    for kind in KINDS:
        jobs.assert_equal(on_cluster.variables(kind), one_host.variables(kind))
        result = on_cluster.results[kind]
        assert result["processes"] == [result["process"]] * 4, kind
    assert "all hosts read the same data" not in on_cluster.log
    assert "calls Python" not in on_cluster.log
