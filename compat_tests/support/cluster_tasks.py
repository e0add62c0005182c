"""The tasks of a cluster on this machine, each a process with its own TF_CONFIG."""

from __future__ import annotations

import json
import pathlib
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from compat_tests.programs import jobs
from compat_tests.support.local_cluster import free_addresses
from compat_tests.support.nursery import Nursery, Task

SERVE = "import sys; from estimator_bridge.cli.main import main; sys.exit(main(['serve']))"
"""A program that does the same as `estimator-bridge serve`."""

PATIENCE = 600
"""A timeout in seconds for a run that takes a minute, because the machine may be busy."""

Command = tuple[pathlib.Path, Sequence[Any]]
"""A program and its arguments."""


def begin_as(alone: pathlib.Path, folder: pathlib.Path) -> None:
    """Copies the first checkpoint of a model_dir, and of its input, to the `model` of a folder.

    Initial values depend on the parts of tables, and on the numbers of ops in a graph.
    """
    jobs.continue_from(f"{alone}/model.ckpt-0", f"{folder}/model")
    for path in alone.glob("input*.ckpt-0.*"):
        shutil.copy(path, folder / "model")


class ClusterTasks:
    """The processes of a cluster, and of its evaluator, which has no address in the cluster."""

    def __init__(
        self,
        nursery: Nursery,
        folder: pathlib.Path,
        command: Callable[[str, int], Command],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Remembers the arguments; does not start any task.

        Args:
            folder: the folder for the logs, whose names are job and number.
            command: returns the command for a job's name and a task's number.
            environment: environment variables for all tasks, besides TF_CONFIG.
        """
        self._environment = environment or {}
        self._nursery, self.folder, self._command = nursery, folder, command
        self._cluster: dict[str, list[str]] = {}
        self.running: dict[tuple[str, int], Task] = {}

    def start_all(self, *, later: Collection[str] = (), **counts: int) -> None:
        """Starts the given number of tasks of each job, in order; a job may be "evaluator".

        Tasks of the jobs in `later` get addresses, but have to be started with `start`.
        """
        in_cluster = {job: n for job, n in counts.items() if job != "evaluator"}
        self._cluster = free_addresses(**in_cluster)
        for job, count in counts.items():
            for number in range(0 if job in later else count):
                self.start(job, number)

    def start(self, job: str, number: int, **environment: str) -> None:
        """Starts a task at its address. `environment` has further variables for this task."""
        config = {"cluster": self._cluster, "task": {"type": job, "index": number}}
        program, arguments = self._command(job, number)
        log = self.folder / f"{job}{number}.log"
        variables = {"TF_CONFIG": json.dumps(config), **self._environment, **environment}
        self.running[job, number] = self._nursery.start(program, arguments, log, variables)

    def log(self, job: str, number: int) -> str:
        return (self.folder / f"{job}{number}.log").read_text(errors="replace")

    def wait(self, seconds: float, *jobs: str) -> None:
        """Waits until all tasks of the jobs, by default of all jobs, have ended; none may fail."""
        waiting = {place for place in self.running if not jobs or place[0] in jobs}
        end = time.monotonic() + seconds
        while waiting:
            assert time.monotonic() < end, [self.running[place].tail() for place in waiting]
            for place, task in self.running.items():
                code = task.poll()
                assert code in (None, 0), (place, code, task.tail())
                if code == 0:
                    waiting.discard(place)
            time.sleep(0.05)

    def wait_until(self, is_so: Callable[[], bool], seconds: float) -> None:
        """Waits until `is_so()` is True. The chief must not end before."""
        end = time.monotonic() + seconds
        while not is_so():
            chief = self.running["chief", 0]
            assert chief.poll() is None, chief.tail()
            assert time.monotonic() < end, chief.tail()
            time.sleep(0.01)  # short, because a test then kills a task in the middle of something

    def kill(self) -> None:
        for task in self.running.values():
            task.kill()
