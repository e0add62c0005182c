"""Starts tasks of clusters as processes: forked from one that has imported TensorFlow.

A process that has run ops cannot be forked, so the nursery is a process of its own, to which the
tests talk by lines of JSON. A task starts in milliseconds, however busy the machine is.
"""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any


class Task:
    """A process that the nursery started."""

    def __init__(self, nursery: Nursery, pid: int, log: pathlib.Path) -> None:
        self._nursery, self._code = nursery, None
        self.pid, self.log = pid, log

    def poll(self) -> int | None:
        """Returns the exit status; None while the task runs."""
        if self._code is None:
            self._code = self._nursery.ask("poll", self.pid)
        return self._code

    def kill(self) -> None:
        """Ends the task as `kill -9` does; nothing if it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait(60)

    def wait(self, seconds: float) -> int:
        """Returns the exit status; raises TimeoutError, with the end of the log."""
        end = time.monotonic() + seconds
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise TimeoutError(f"{self.log} after {seconds} s:\n{self.tail()}")
            time.sleep(0.1)
        return code

    def tail(self) -> str:
        """Returns the end of the log."""
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else ""


class Nursery:
    """Starts tasks, each a Python program; ends with the tests, and its tasks with it."""

    def __init__(self) -> None:
        environment = os.environ | {"TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "1"}
        environment.pop("TF_CONFIG", None)
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"import {__name__} as nursery; nursery.main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self._tasks: list[Task] = []

    def ask(self, *request: Any) -> Any:
        """Returns what the nursery answers."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(
        self,
        program: str | pathlib.Path,
        arguments: Sequence[Any],
        log: pathlib.Path,
        environment: Mapping[str, str] | None = None,
    ) -> Task:
        """Starts a program; what it prints goes to the log."""
        pid = self.ask(
            "start", str(program), list(map(str, arguments)), str(log), dict(environment or {})
        )
        task = Task(self, pid, log)
        self._tasks.append(task)
        return task

    def close(self) -> None:
        """Ends all tasks, and the nursery."""
        for task in self._tasks:
            task.kill()
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(30)


def main() -> None:
    """Answers requests until there are no more."""
    # Forks have what is imported here.
    importlib.import_module("estimator_bridge.estimator")
    importlib.import_module("tf2_engine.backends")
    for line in sys.stdin:
        request = json.loads(line)
        sys.stdout.write(json.dumps(_answer(*request)) + "\n")
        sys.stdout.flush()


def _answer(what: str, *request: Any) -> int | None:
    if what == "poll":
        pid, status = os.waitpid(request[0], os.WNOHANG)
        return None if pid == 0 else os.waitstatus_to_exitcode(status)
    pid = os.fork()
    if pid == 0:
        _become(*request)
    return pid


def _become(program: str, arguments: list[str], log: str, environment: dict[str, str]) -> None:
    """Runs a program in this process, and ends it as Python would."""
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = [program, *arguments]
    code = 1
    try:
        runpy.run_path(program, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        import atexit

        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
