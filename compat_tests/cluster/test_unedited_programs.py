"""A program that knows nothing of clusters trains on one, with the numbers of one process."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pathlib
import signal
import sys
import time
from collections.abc import Iterator, Mapping

import pytest

from compat_tests.programs import jobs
from compat_tests.support.cluster_tasks import (
    PATIENCE,
    SERVE,
    ClusterTasks,
    Command,
    begin_as,
)
from compat_tests.support.nursery import Nursery, Task
from estimator_bridge.runtime.cluster import watchdog

PROGRAM = pathlib.Path(__file__).with_name("program.py")
STEPS = 30
SAVED_EVERY, LOOP = 10, 5
"""Steps, in the program: those between two checkpoints, and those that hooks see as one."""
RECOVERY = 30
"""Seconds from the start of a killed task to the end of the next loop, on a machine of its own."""

END = 10
"""Seconds in which all tasks end after the chief has, also with an error."""

pytestmark = pytest.mark.full

IN_FOLDER = """
import os, runpy, sys
os.chdir({0!r})
sys.argv = [*map(str, {2})]
runpy.run_path({1!r}, run_name="__main__")
"""
"""A program that runs another one in a folder, with its arguments."""


@pytest.fixture(scope="module")
def alone(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The model_dir of the program in one process, undisturbed; its log is beside it."""
    folder = tmp_path_factory.mktemp("alone")
    task = nursery.start(PROGRAM, [folder / "model", STEPS, 2], folder / "log")
    assert task.wait(PATIENCE) == 0, task.tail()
    return folder


class Tasks(ClusterTasks):
    """The tasks of a cluster; each runs the program, or `estimator-bridge serve`."""

    def __init__(
        self,
        nursery: Nursery,
        folder: pathlib.Path,
        environment: Mapping[str, str] | None = None,
        **counts: int,
    ) -> None:
        (folder / "serve.py").write_text(SERVE)

        def command(job: str, number: int) -> Command:
            if (job, number) == ("ps", 0):  # the others run the program itself
                return folder / "serve.py", []
            return PROGRAM, [folder / "model", STEPS, 2]

        super().__init__(nursery, folder, command, environment)
        self.start_all(**counts)

    def wait_for_step(self, step: int) -> None:
        """Waits until the chief says that a step is done."""
        self.wait_until(lambda: step in steps_of(self.folder / "chief0.log"), PATIENCE)

    def wait_for_loop_after(self, count: int) -> None:
        """Waits until the chief has said of more loops than so many that they are done."""
        self.wait_until(lambda: len(steps_of(self.folder / "chief0.log")) > count, PATIENCE)

    def wait_for_file(self, start: str) -> None:
        """Waits until the model_dir has a file whose name starts so."""
        self.wait_until(lambda: any((self.folder / "model").glob(f"{start}*")), PATIENCE)


def steps_of(log: pathlib.Path) -> list[int]:
    """Returns the steps after which a loop of the training has ended, in their order."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return [int(line.removeprefix("STEP ")) for line in lines if line.startswith("STEP ")]


def most_steps_lost(log: pathlib.Path) -> int:
    """Returns the most steps that a session made again."""
    loops = itertools.pairwise(steps_of(log))
    return max([before - (after - LOOP) for before, after in loops], default=0)


def result_of(log: pathlib.Path) -> Mapping[str, float]:
    lines = [line for line in log.read_text().splitlines() if line.startswith("RESULT ")]
    metrics: Mapping[str, float] = json.loads(lines[-1].removeprefix("RESULT "))
    return metrics


def assert_same(alone: pathlib.Path, folder: pathlib.Path, chief: str = "chief0.log") -> None:
    """Asserts that all variables and results are equal to the bit."""
    one, other = (jobs.saved(None, f"{each}/model/model.ckpt-{STEPS}") for each in (alone, folder))
    assert len([name for name in one if "Adagrad" in name]) == 2
    jobs.assert_equal(other, one)
    assert result_of(folder / chief) == result_of(alone / "log")


@pytest.mark.parametrize("jobs", [{"ps": 2}, {"worker": 2, "ps": 2}], ids=["ps", "workers and ps"])
def test_a_program_trains_as_alone(
    jobs: dict[str, int], nursery: Nursery, alone: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """All variables, metrics and predictions are those of one process, and every task ends."""
    begin_as(alone / "model", tmp_path)
    tasks = Tasks(nursery, tmp_path, chief=1, **jobs)
    assert tasks.running["chief", 0].wait(PATIENCE) == 0
    tasks.wait(END)
    assert_same(alone, tmp_path)
    # Each parameter server has written its rows itself.
    files = list((tmp_path / "model").glob(f"model.ckpt-{STEPS}.data-*"))
    assert len(files) >= jobs["ps"]
    count = 1 + sum(jobs.values())
    assert f"Native ops are on {count} of {count} tasks." in tasks.log("chief", 0)


@pytest.mark.parametrize("hidden", ["ps", "worker"])
@pytest.mark.parametrize("restores", [False, True], ids=["saves", "restores"])
def test_a_task_without_the_model_dir_is_named(
    hidden: str, restores: bool, nursery: Nursery, alone: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """A task for which the path of the model_dir is another folder is found before the first step.

    Here the path is relative, and the folder that it starts from is not the same.
    """
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    elsewhere.mkdir()
    here.mkdir()
    if restores:
        begin_as(alone / "model", here)
    (here / "program.py").write_text(
        IN_FOLDER.format(str(here), str(PROGRAM), ["", "model", STEPS, 2])
    )
    for folder in (here, elsewhere):
        (folder / "serve.py").write_text(f"import os; os.chdir({str(folder)!r})\n{SERVE}")

    def command(job: str, number: int) -> Command:
        if job == "chief":
            return here / "program.py", []
        return (elsewhere if (job, number) == (hidden, 1) else here) / "serve.py", []

    tasks = ClusterTasks(nursery, tmp_path, command)
    tasks.start_all(chief=1, worker=2, ps=2)
    assert tasks.running["chief", 0].wait(PATIENCE) == 1
    del tasks.running["chief", 0]
    tasks.wait(END)
    assert f"the task {hidden} 1 does not find what other tasks" in tasks.log("chief", 0)
    assert not steps_of(tmp_path / "chief0.log")


def start_five(
    nursery: Nursery,
    alone: pathlib.Path,
    folder: pathlib.Path,
    environment: Mapping[str, str] | None = None,
) -> Tasks:
    """Starts a chief, two workers and two parameter servers."""
    begin_as(alone / "model", folder)
    return Tasks(nursery, folder, environment, chief=1, worker=2, ps=2)


@pytest.mark.parametrize("job, index", [("ps", 0), ("ps", 1), ("worker", 1), ("chief", 0)])
def test_a_killed_task_comes_back(
    job: str, index: int, nursery: Nursery, alone: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """After `kill -9` and a start at the same address the end is that of an undisturbed run."""
    tasks = start_five(nursery, alone, tmp_path)
    tasks.wait_for_step(10)
    tasks.running[job, index].kill()
    tasks.start(job, index)
    tasks.wait(PATIENCE)
    assert_same(alone, tmp_path)


@pytest.mark.parametrize("job", ["ps", "worker"])
def test_a_task_that_comes_back_without_native_ops_is_named(
    job: str, nursery: Nursery, alone: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """The chief ends before its next step; started again it goes on with TensorFlow's ops there."""
    tasks = start_five(nursery, alone, tmp_path)
    tasks.wait_for_step(10)
    tasks.running[job, 1].kill()
    tasks.start(job, 1, ESTIMATOR_BRIDGE_NATIVE="0")
    chief = tasks.running["chief", 0]
    assert chief.wait(PATIENCE) == 1
    assert f"The task {job} 1 at 127.0.0.1:" in chief.text()
    assert "was started again without the native ops" in chief.text()
    # The others have ended with the chief.
    for place in [place for place in tasks.running if place != ("chief", 0)]:
        tasks.running[place].wait(PATIENCE)
        tasks.start(*place, **({"ESTIMATOR_BRIDGE_NATIVE": "0"} if place == (job, 1) else {}))
    tasks.start("chief", 0)
    tasks.wait(PATIENCE)
    assert_same(alone, tmp_path)
    assert "Native ops are on 4 of 5 tasks." in tasks.log("chief", 0)


ALL_TASKS = [("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1), ("chief", 0)]


@pytest.mark.soak
@pytest.mark.parametrize("turn", ["first", "second"])
@pytest.mark.parametrize("saves", [True, False], ids=["while it saves", "between saves"])
@pytest.mark.parametrize("job, index", ALL_TASKS)
def test_twenty_faults(
    job: str,
    index: int,
    saves: bool,
    turn: str,
    nursery: Nursery,
    alone: pathlib.Path,
    tmp_path: pathlib.Path,
) -> None:
    """Each task, killed as a checkpoint is written or between two, each twice: nothing is lost.

    But the steps since the last checkpoint, which are made again, and half a minute. Twice, because
    no two kills meet the same op.
    """
    tasks = start_five(nursery, alone, tmp_path)
    if saves:
        tasks.wait_for_file("model.ckpt-20")
    else:
        tasks.wait_for_step(15)
    tasks.running[job, index].kill()
    before = len(steps_of(tmp_path / "chief0.log"))
    start = time.monotonic()
    tasks.start(job, index)
    tasks.wait_for_loop_after(before)
    recovery = time.monotonic() - start
    tasks.wait(PATIENCE)
    assert_same(alone, tmp_path)
    assert most_steps_lost(tmp_path / "chief0.log") <= SAVED_EVERY
    sys.stdout.write(f"{job} {index}, {turn}, saves={saves}: recovered in {recovery:.1f} s\n")
    assert recovery <= RECOVERY


def test_a_frozen_server_is_waited_for(
    nursery: Nursery, alone: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """A parameter server that freezes for 20 seconds costs 20 seconds, and no step."""
    tasks = start_five(nursery, alone, tmp_path)
    tasks.wait_for_step(15)
    with frozen(tasks.running["ps", 1]):
        time.sleep(20)
    tasks.wait(PATIENCE)
    assert_same(alone, tmp_path)
    assert most_steps_lost(tmp_path / "chief0.log") == 0


@pytest.mark.parametrize("is_started_again", [True, False], ids=["started again", "goes on"])
def test_a_lost_server_ends_the_chief(
    is_started_again: bool, nursery: Nursery, alone: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """A task that is frozen for too long is named, and the chief ends; started again it goes on.

    The frozen task may be another process by then, or the same one, in the midst of an old step.
    """
    # Far more than a task of a busy machine needs for an answer.
    tasks = start_five(nursery, alone, tmp_path, {watchdog.VARIABLE: "20"})
    tasks.wait_for_step(15)
    with frozen(tasks.running["ps", 1]):
        chief = tasks.running["chief", 0]
        assert chief.wait(PATIENCE) == watchdog.STATUS == 75
        assert "The task ps 1 at 127.0.0.1:" in chief.text()
        assert "has not answered for 20 s" in chief.text()
        if is_started_again:
            tasks.running["ps", 1].kill()
    if is_started_again:
        tasks.start("ps", 1)
    tasks.start("chief", 0)
    tasks.wait(PATIENCE)
    assert_same(alone, tmp_path)


@contextlib.contextmanager
def frozen(task: Task) -> Iterator[None]:
    """Freezes a task in the context: it runs no more, and its connections stay."""
    os.kill(task.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(task.pid, signal.SIGCONT)
