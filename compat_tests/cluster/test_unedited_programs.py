"""A program that knows nothing of clusters trains on one, with the numbers of one process."""

from __future__ import annotations

import json
import pathlib
import shutil
import time
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.support.local_cluster import free_ports
from compat_tests.support.nursery import Nursery, Task

PROGRAM = pathlib.Path(__file__).with_name("program.py")
SERVE = "import sys; from estimator_bridge.cli.main import main; sys.exit(main(['serve']))"
STEPS = 30
PATIENCE = 600
"""Seconds for a run of a minute: the machine may be busy with other things."""

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """Starts tasks."""
    environment = {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "1"}
    started = Nursery("estimator_bridge.estimator", "tf2_engine.backends", environment=environment)
    yield started
    started.close()


@pytest.fixture(scope="module")
def alone(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The model_dir of the program in one process, undisturbed; its log is beside it."""
    folder = tmp_path_factory.mktemp("alone")
    task = nursery.start(PROGRAM, [folder / "model", STEPS, 2], folder / "log")
    assert task.wait(PATIENCE) == 0, task.tail()
    return folder


class Tasks:
    """The tasks of a cluster; each runs the program, or `estimator-bridge serve`."""

    def __init__(self, nursery: Nursery, folder: pathlib.Path, steps: int, **counts: int) -> None:
        ports = iter(free_ports(sum(counts.values())))
        self._cluster = {
            job: [f"127.0.0.1:{next(ports)}" for _ in range(n)] for job, n in counts.items()
        }
        self._nursery, self.folder, self._steps = nursery, folder, steps
        self.running: dict[tuple[str, int], Task] = {}
        (folder / "serve.py").write_text(SERVE)
        for job, count in counts.items():
            for index in range(count):
                self.start(job, index)

    def start(self, job: str, index: int) -> None:
        """Starts a task, at its address."""
        place = {"type": job, "index": index}
        environment = {"TF_CONFIG": json.dumps({"cluster": self._cluster, "task": place})}
        serves = job == "ps" and index == 0  # the others run the program itself
        program = self.folder / "serve.py" if serves else PROGRAM
        arguments = [] if serves else [self.folder / "model", self._steps, 2]
        log = self.folder / f"{job}{index}.log"
        self.running[job, index] = self._nursery.start(program, arguments, log, environment)

    def wait(self) -> None:
        """Waits until all tasks have ended, all with 0."""
        chief = self.running["chief", 0]
        assert chief.wait(PATIENCE) == 0, chief.tail()
        for name, task in self.running.items():
            assert task.wait(60) == 0, (name, task.tail())

    def wait_for_step(self, step: int) -> None:
        """Waits until a checkpoint of a step is written."""
        end = time.monotonic() + PATIENCE
        while not list((self.folder / "model").glob(f"model.ckpt-{step}.index")):
            chief = self.running["chief", 0]
            assert chief.poll() is None, chief.tail()
            assert time.monotonic() < end, chief.tail()
            time.sleep(0.05)


def begin_as(alone: pathlib.Path, folder: pathlib.Path) -> None:
    """Copies the first checkpoint: initial values depend on the parts of tables."""
    (folder / "model").mkdir()
    for pattern in ("model.ckpt-0.*", "input*.ckpt-0.*"):
        for path in (alone / "model").glob(pattern):
            shutil.copy(path, folder / "model")
    state = 'model_checkpoint_path: "model.ckpt-0"\nall_model_checkpoint_paths: "model.ckpt-0"\n'
    (folder / "model" / "checkpoint").write_text(state)


def result_of(log: pathlib.Path) -> Mapping[str, float]:
    """Returns the metrics and the first prediction."""
    lines = [line for line in log.read_text().splitlines() if line.startswith("RESULT ")]
    metrics: Mapping[str, float] = json.loads(lines[-1].removeprefix("RESULT "))
    return metrics


def assert_same(alone: pathlib.Path, folder: pathlib.Path, chief: str = "chief0.log") -> None:
    """Asserts that all variables and results are equal to the bit."""
    one, other = (
        tf.train.load_checkpoint(str(each / "model" / f"model.ckpt-{STEPS}"))
        for each in (alone, folder)
    )
    names = sorted(one.get_variable_to_shape_map())
    assert names == sorted(other.get_variable_to_shape_map())
    assert len([name for name in names if "Adagrad" in name]) == 2
    for name in names:
        np.testing.assert_array_equal(other.get_tensor(name), one.get_tensor(name), name)
    assert result_of(folder / chief) == result_of(alone / "log")


@pytest.mark.parametrize("jobs", [{"ps": 2}, {"worker": 2, "ps": 2}], ids=["ps", "workers and ps"])
def test_a_program_trains_as_alone(
    jobs: dict[str, int], nursery: Nursery, alone: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """All variables, metrics and predictions are those of one process, and every task ends."""
    begin_as(alone, tmp_path)
    tasks = Tasks(nursery, tmp_path, STEPS, chief=1, **jobs)
    tasks.wait()
    assert_same(alone, tmp_path)
    # Each parameter server has written its rows itself.
    files = list((tmp_path / "model").glob(f"model.ckpt-{STEPS}.data-*"))
    assert len(files) >= jobs["ps"]


@pytest.mark.parametrize("job, index", [("ps", 0), ("ps", 1), ("worker", 1), ("chief", 0)])
def test_a_killed_task_comes_back(
    job: str, index: int, nursery: Nursery, alone: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """After `kill -9` and a start at the same address the end is that of an undisturbed run."""
    begin_as(alone, tmp_path)
    tasks = Tasks(nursery, tmp_path, STEPS, chief=1, worker=2, ps=2)
    tasks.wait_for_step(10)
    tasks.running[job, index].kill()
    tasks.start(job, index)
    tasks.wait()
    assert_same(alone, tmp_path)
