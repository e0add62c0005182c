"""Starts programs in processes that are forked from one that has imported TensorFlow.

A process that has run ops cannot be forked. The nursery is therefore a separate process, with which
the tests exchange lines of JSON. A task starts in milliseconds, however busy the machine is.
"""

from __future__ import annotations

import functools
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
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any


class Task:
    """A process that the nursery started."""

    def __init__(self, nursery: Nursery, pid: int, log: pathlib.Path) -> None:
        self._nursery, self._code = nursery, None
        self.pid, self.log = pid, log

    def poll(self) -> int | None:
        """Returns the exit status, or None while the task runs."""
        if self._code is None:
            self._code = self._nursery.ask("poll", self.pid)
        return self._code

    def kill(self) -> None:
        """Ends the task like `kill -9`. Does nothing if the task has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait(60)

    def wait(self, seconds: float) -> int:
        """Waits for the exit status. Raises a TimeoutError with the end of the log."""
        end = time.monotonic() + seconds
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise TimeoutError(f"{self.log} after {seconds} s:\n{self.tail()}")
            time.sleep(0.1)
        return code

    def text(self) -> str:
        """Returns the whole log, because TensorFlow's threads may write much after a message."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def tail(self) -> str:
        return self.text()[-3000:]


class Nursery:
    """A process that starts tasks, each a Python program."""

    def __init__(self, *modules: str, environment: Mapping[str, str] | None = None) -> None:
        """Starts the nursery.

        Args:
            modules: the modules to import, which all tasks then have already imported.
            environment: environment variables for all tasks, in addition to those of this process.
        """
        whole = {**os.environ, **(environment or {})}
        whole.pop("TF_CONFIG", None)
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"import {__name__} as nursery; nursery.main()", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=whole,
            text=True,
        )
        self._tasks: list[Task] = []

    def ask(self, *request: Any) -> Any:
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
        """Starts a program, whose output is written to the log."""
        pid = self.ask(
            "start", str(program), list(map(str, arguments)), str(log), dict(environment or {})
        )
        task = Task(self, pid, log)
        self._tasks.append(task)
        return task

    def close(self) -> None:
        for task in self._tasks:
            task.kill()
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


def main() -> None:
    for name in sys.argv[1:]:
        importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        sys.stdout.write(json.dumps(_answer(*request)) + "\n")
        sys.stdout.flush()


def _answer(what: str, *request: Any) -> int | None:
    if what == "poll":
        pid, status = os.waitpid(request[0], os.WNOHANG)
        return None if pid == 0 else os.waitstatus_to_exitcode(status)
    if what == "wait":
        return os.waitstatus_to_exitcode(os.waitpid(request[0], 0)[1])
    pid = os.fork()
    if pid == 0:
        (_become_task if what == "start" else _become_new)(*request)
    return pid


def _become_task(program: str, arguments: list[str], log: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    sys.argv = [program, *arguments]
    _become(lambda: runpy.run_path(program, run_name="__main__"), log, log)


def _become_new(
    how: str,
    what: str,
    arguments: list[str],
    folder: str,
    environment: dict[str, str],
    logs: list[str],
) -> None:
    """Runs code, a module or a script as a new interpreter would, without modules of the suite."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "compat_tests"]:
        del sys.modules[name]
    sys.argv = ["-c" if how == "code" else what, *arguments]
    sys.path[0] = os.path.dirname(what) if how == "script" else ""
    sys.path[1:1] = [path for path in environment.get("PYTHONPATH", "").split(":") if path]
    _become(functools.partial(WAYS[how], what), *logs)


def _run_code(text: str) -> None:
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    exec(compile(text, "<string>", "exec"), main.__dict__)


WAYS: dict[str, Callable[[str], Any]] = {
    "code": _run_code,
    "module": functools.partial(runpy.run_module, run_name="__main__", alter_sys=True),
    "script": functools.partial(runpy.run_path, run_name="__main__"),
}


def _become(program: Callable[[], Any], out: str, err: str) -> None:
    """Runs a program in this process, and then ends the process as Python would."""
    for stream, log in ((1, out), (2, err)):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    code = 1
    try:
        program()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException:
        traceback.print_exc()
    finally:
        import atexit

        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
