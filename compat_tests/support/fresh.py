"""Runs Python in new processes, forked from a process that has only imported TensorFlow.

The processes behave like those of `python -c`, but save the seconds that importing TensorFlow
takes. Tests of this import, or of anything before it, have to start a process instead.
"""

from __future__ import annotations

import atexit
import functools
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from compat_tests.support import own_choice
from compat_tests.support.nursery import Nursery


def python(
    *arguments: Any, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs Python in a process that has imported nothing; returns status and output.

    Args:
        check: whether to raise an AssertionError with the end of stderr if the status is not 0.
        **options: of `subprocess.run`.
    """
    command = [sys.executable, *map(str, arguments)]
    return _checked(subprocess.run(command, capture_output=True, text=True, **options), check)


def code(text: str, *arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs code as `python -c` does; returns status and output.

    Args:
        **options: of `_run`.
    """
    return _run("code", text, arguments, **options)


def module(name: str, *arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a module as `python -m` does; returns status and output.

    Args:
        **options: of `_run`.
    """
    return _run("module", name, arguments, **options)


def script(
    path: str | pathlib.Path, *arguments: Any, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs a file as `python FILE` does; returns status and output.

    Args:
        **options: of `_run`.
    """
    return _run("script", str(path), arguments, **options)


def _run(
    how: str,
    what: str,
    arguments: tuple[Any, ...],
    *,
    check: bool = False,
    cwd: str | pathlib.Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a program like `subprocess.run` with `capture_output` and `text`.

    Args:
        check: whether to raise an AssertionError with the end of stderr if the status is not 0.
        cwd: the folder to run in; by default the current one.
        env: the whole environment; by default that of this process.
    """
    environment = own_choice.of_programs(os.environ if env is None else env)
    words = list(map(str, arguments))
    with tempfile.TemporaryDirectory() as folder:
        logs = [os.path.join(folder, name) for name in ("out", "err")]
        pid = _nursery().ask("run", how, what, words, str(cwd or os.getcwd()), environment, logs)
        status = _nursery().ask("wait", pid)
        out, err = (pathlib.Path(log).read_text(errors="replace") for log in logs)
    return _checked(subprocess.CompletedProcess([what, *words], status, out, err), check)


def _checked(
    done: subprocess.CompletedProcess[str], check: bool
) -> subprocess.CompletedProcess[str]:
    if check and done.returncode:
        raise AssertionError(f"{done.args} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done


@functools.cache
def _nursery() -> Nursery:
    started = Nursery("tensorflow")
    atexit.register(started.close)
    return started
