"""Programs without TPUs train asynchronously on a cluster, as with stock: one graph per task."""

from __future__ import annotations

import functools
import json
import pathlib
from typing import Any

import pytest
import tensorflow as tf

from compat_tests.conftest import HAS_STOCK
from compat_tests.programs import jobs
from compat_tests.support.cluster_tasks import (
    PATIENCE,
    SERVE,
    ClusterTasks,
    Command,
    begin_as,
)
from compat_tests.support.nursery import Nursery

PROGRAM = pathlib.Path(__file__).with_name("asynchronous.py")
STEPS = 200

pytestmark = pytest.mark.full
KINDS = ("plain", "strategy", "tpu", "canned")


@pytest.fixture(scope="module")
def alone(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns the model_dir of the program of a kind in one process."""

    @functools.cache
    def train(kind: str, steps: int = STEPS) -> pathlib.Path:
        folder = tmp_path_factory.mktemp(kind)
        task = nursery.start(PROGRAM, [folder / "model", steps, kind, "bridge"], folder / "log")
        assert task.wait(PATIENCE) == 0, task.tail()
        return folder / "model"

    return train


def tasks_of(
    nursery: Nursery,
    folder: pathlib.Path,
    kind: str,
    whose: str = "bridge",
    steps: int = STEPS,
    serving: tuple[str, int] = ("ps", 1),
) -> ClusterTasks:
    """Returns tasks that run the program; with the bridge the task `serving` serves only."""
    folder.mkdir(exist_ok=True)
    (folder / "serve.py").write_text(SERVE)

    def command(job: str, number: int) -> Command:
        if whose == "bridge" and (job, number) == serving:
            return folder / "serve.py", []
        return PROGRAM, [folder / "model", steps, kind, whose]

    return ClusterTasks(nursery, folder, command)


def values(folder: pathlib.Path, step: int = STEPS) -> dict[str, Any]:
    return jobs.saved(None, f"{folder}/model.ckpt-{step}")


def files_of(folder: pathlib.Path, step: int = STEPS) -> list[str]:
    """Returns the names of the files of a checkpoint."""
    return sorted(path.name for path in folder.glob(f"model.ckpt-{step}.*"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_chief_alone_trains_as_one_process(
    kind: str, nursery: Nursery, alone: Any, tmp_path: pathlib.Path
) -> None:
    """With one client there is no race: variables are those of one process, and of stock."""
    begin_as(alone(kind), tmp_path / "bridge")
    tasks = tasks_of(nursery, tmp_path / "bridge", kind)
    tasks.start_all(ps=2, chief=1)
    tasks.wait(PATIENCE)
    ours = tmp_path / "bridge" / "model"
    jobs.assert_equal(values(alone(kind)), values(ours))
    # Both parameter servers have written what they hold.
    assert len([name for name in files_of(ours) if ".data-" in name]) == 2
    if not HAS_STOCK:
        return

    begin_as(alone(kind), tmp_path / "stock")
    stock = tasks_of(nursery, tmp_path / "stock", kind, "stock")
    stock.start_all(ps=2, chief=1)
    stock.wait(PATIENCE, "chief")
    stock.kill()  # stock's parameter servers never end
    jobs.assert_equal(values(tmp_path / "stock" / "model"), values(ours))
    assert files_of(tmp_path / "stock" / "model") == files_of(ours)


@pytest.mark.parametrize("kind", ["plain", "tpu"])
def test_every_step_of_every_task_is_counted_once(
    kind: str, nursery: Nursery, alone: Any, tmp_path: pathlib.Path
) -> None:
    """The global step is the sum of the steps of all tasks; all end, the evaluator too."""
    tasks = tasks_of(nursery, tmp_path, kind)
    tasks.start_all(ps=2, worker=2, chief=1, evaluator=1)
    tasks.wait(PATIENCE)
    line = next(each for each in tasks.log("chief", 0).splitlines() if each.startswith("COUNTS "))
    shown = json.loads(line.removeprefix("COUNTS "))
    assert shown["counts"] == [int(each) for each in shown["made"]]
    assert shown["global_step"] == sum(shown["counts"])
    # When the last step is made, each of the other two may be in a step, and each of the three may
    # make one more: the count that it looks at is one of before or after its own step.
    assert STEPS <= shown["global_step"] <= STEPS + 5
    assert min(shown["counts"]) > 0
    assert list((tmp_path / "model" / "eval").glob("events*"))
    assert not [path for path in (tmp_path / "model").glob("*") if "_temp" in path.name]
    assert len(list((tmp_path / "model").glob("events*"))) == 1  # the chief's


def test_a_worker_that_only_serves_warns(nursery: Nursery, tmp_path: pathlib.Path) -> None:
    tasks = tasks_of(nursery, tmp_path, "canned", serving=("worker", 0))
    tasks.start_all(ps=1, worker=2, chief=1)
    tasks.wait(PATIENCE)
    warning = "worker 0 only serves, and so takes no part in the training"
    assert tasks.log("worker", 0).count(warning) == 1
    assert "in place of `estimator-bridge serve`" in tasks.log("worker", 0)
    assert "only serves" not in tasks.log("worker", 1) + tasks.log("ps", 0)


@pytest.mark.stock
def test_checkpoints_beside_workers_are_those_of_stock(
    nursery: Nursery, tmp_path: pathlib.Path
) -> None:
    """With a worker, whose steps nobody can foresee, files, names, shapes and types are equal."""
    layouts = []
    for whose in ("bridge", "stock"):
        tasks = tasks_of(nursery, tmp_path / whose, "plain", whose)
        tasks.start_all(ps=2, worker=1, chief=1)
        tasks.wait(PATIENCE, "chief", "worker")
        tasks.kill()
        model, step = tmp_path / whose / "model", _last_step(tmp_path / whose)
        reader = tf.train.load_checkpoint(str(model / f"model.ckpt-{step}"))
        files = [name.partition(f"-{step}.")[2] for name in files_of(model, step)]
        layouts.append(
            (files, reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map())
        )
    assert layouts[0] == layouts[1]
    assert "steps_of_1" in layouts[0][1]


def test_a_killed_worker_comes_back_and_no_one_waits_for_it(
    nursery: Nursery, tmp_path: pathlib.Path
) -> None:
    """The others train on without a killed worker; started again it goes on with the job."""
    tasks = tasks_of(nursery, tmp_path, "plain", steps=1000)
    tasks.start_all(ps=2, worker=2, chief=1)
    tasks.wait_until(lambda: _last_step(tmp_path) >= 250, PATIENCE)
    tasks.running["worker", 1].kill()
    killed_at = _last_step(tmp_path)
    tasks.wait_until(lambda: _last_step(tmp_path) > killed_at, PATIENCE)
    tasks.start("worker", 1)
    tasks.wait(PATIENCE)
    assert _last_step(tmp_path) >= 1000
    # That of its second life: it made at least the step that tells it that all are made.
    assert int((tmp_path / "model" / "made_by_1").read_text()) > 0


@pytest.mark.parametrize("job, number", [("ps", 0), ("ps", 1), ("chief", 0)])
def test_a_killed_server_or_chief_comes_back(
    job: str, number: int, nursery: Nursery, alone: Any, tmp_path: pathlib.Path
) -> None:
    """After `kill -9` and a start at the same address the end is that of an undisturbed run."""
    steps = 2000
    begin_as(alone("plain", steps), tmp_path)
    tasks = tasks_of(nursery, tmp_path, "plain", steps=steps)
    tasks.start_all(ps=2, chief=1)
    tasks.wait_until(lambda: _last_step(tmp_path) >= steps // 4, PATIENCE)
    tasks.running[job, number].kill()
    tasks.start(job, number)
    tasks.wait(PATIENCE)
    jobs.assert_equal(values(alone("plain", steps), steps), values(tmp_path / "model", steps))


@pytest.mark.soak
@pytest.mark.parametrize("time", ["first", "second"])
def test_a_killed_evaluator_comes_back(
    time: str, nursery: Nursery, alone: Any, tmp_path: pathlib.Path
) -> None:
    """The training does not notice; started again it evaluates the last checkpoint, and ends."""
    steps = 2000
    begin_as(alone("plain", steps), tmp_path)
    tasks = tasks_of(nursery, tmp_path, "plain", steps=steps)
    tasks.start_all(ps=2, chief=1, evaluator=1)
    folder = tmp_path / "model" / "eval"
    tasks.wait_until(lambda: any(folder.glob("events*")), PATIENCE)
    tasks.running["evaluator", 0].kill()
    tasks.start("evaluator", 0)
    tasks.wait(PATIENCE)
    jobs.assert_equal(values(alone("plain", steps), steps), values(tmp_path / "model", steps))
    events = [
        event.step
        for path in folder.glob("events*")
        for event in tf.compat.v1.train.summary_iterator(str(path))
    ]
    assert max(events) == steps


def _last_step(folder: pathlib.Path) -> int:
    """Returns the step of the latest checkpoint; -1 if there is none."""
    latest = tf.train.latest_checkpoint(str(folder / "model"))
    return int(latest.rpartition("-")[2]) if latest else -1
