"""SIGTERM and Ctrl-C end a training in time, with a checkpoint, whatever its input does."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from compat_tests.programs import houses, stuck
from compat_tests.support.base_jobs import Terminate, make
from compat_tests.support.paths import ROOT
from estimator_bridge import errors
from estimator_bridge.runtime.loop import interruptions

SECONDS = 4.0
"""What the processes are given to end in."""
SLACK = 20.0
"""On a machine that does other things; what is stuck would sleep for a thousand seconds."""


@pytest.fixture(autouse=True)
def usual_ctrl_c() -> Iterator[None]:
    """Ctrl-C is Python's, also where a shell runs the tests in its background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt(
    directory: pathlib.Path, how: str, number: int, *command: str
) -> tuple[int, str, float]:
    """Starts a job, signals when it is stuck; returns status, stderr, and seconds to its end."""
    directory.mkdir()
    environment = {**os.environ, interruptions.VARIABLE: str(SECONDS), "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, *command, str(directory), how],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    try:
        began = time.monotonic()
        while not is_stuck(directory, how) and process.poll() is None:
            assert time.monotonic() - began < 300, "it never got there"
            time.sleep(0.1)
        time.sleep(0.5)
        signalled = time.monotonic()
        process.send_signal(number)
        _, said = process.communicate(timeout=120)
        return process.returncode, said, time.monotonic() - signalled
    finally:
        process.kill()


def is_stuck(directory: pathlib.Path, how: str) -> bool:
    """Returns whether the job waits, or is in the middle of its steps."""
    if how == "never":
        return (directory / "model" / "model.ckpt-4.index").exists()
    return (directory / "stuck").exists()


def last_step(directory: pathlib.Path) -> int:
    """Returns the step of the last checkpoint."""
    return int(tf.train.latest_checkpoint(str(directory / "model")).rpartition("-")[2])


@pytest.mark.full
def test_a_stuck_input_ends_with_a_checkpoint(tmp_path: pathlib.Path) -> None:
    """While a generator sleeps, SIGTERM saves the steps that were made and ends the process.

    Of the three steps that were made the third has no checkpoint before.
    """
    directory = tmp_path / "job"
    status, said, seconds = interrupt(
        directory, "python", signal.SIGTERM, "-m", "compat_tests.programs.stuck"
    )
    assert status in (-signal.SIGTERM, 128 + signal.SIGTERM), said
    assert seconds < SECONDS + SLACK
    assert last_step(directory) == stuck.STEPS, said
    assert f"step {stuck.STEPS} is saved" in said


@pytest.mark.full
@pytest.mark.parametrize("how", ["python", "never"])
def test_ctrl_c_is_one_line(how: str, tmp_path: pathlib.Path) -> None:
    """After Ctrl-C `run` says what is saved, in a line, and ends with status 130."""
    directory = tmp_path / "job"
    status, said, seconds = interrupt(
        directory,
        how,
        signal.SIGINT,
        *("-m", "estimator_bridge", "run", str(ROOT / "compat_tests" / "programs" / "stuck.py")),
    )
    assert status == 130, said
    assert seconds < SECONDS + SLACK
    assert "Traceback" not in said
    step = last_step(directory)
    assert said.count(f"step {step} is saved in") == 1, said
    assert step == stuck.STEPS or how == "never"


@pytest.mark.full
def test_a_slow_step_is_waited_for(tmp_path: pathlib.Path) -> None:
    """A step that has its batch is finished and saved, though it takes longer than the limit."""
    directory = tmp_path / "job"
    status, said, seconds = interrupt(
        directory, "slow", signal.SIGTERM, "-m", "compat_tests.programs.stuck"
    )
    assert status == -signal.SIGTERM, said
    assert seconds >= stuck.SLOW_SECONDS - 2
    assert last_step(directory) == stuck.STEPS + 1, said


class Interrupt(tf.train.SessionRunHook):
    """Presses Ctrl-C in a step."""

    def __init__(self, step: int) -> None:
        self._step, self._steps = step, 0

    def before_run(self, run_context: Any) -> None:
        """Counts, and presses."""
        self._steps += 1
        if self._steps == self._step:
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_says_what_is_saved(tmp_path: pathlib.Path) -> None:
    """A program can catch Ctrl-C: the step is finished and saved, and the error says so."""
    job = make(tmp_path)
    with pytest.raises(KeyboardInterrupt, match="Ctrl-C: step 3 is saved in") as raised:
        job.train(houses.data, steps=100, hooks=[Interrupt(3)])

    assert job.latest_checkpoint().endswith("model.ckpt-3")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    files = [frame.path.name for frame in raised.traceback]
    assert files == [pathlib.Path(__file__).name, "base_estimator.py"]


def test_a_handler_of_the_program_gets_ctrl_c(tmp_path: pathlib.Path) -> None:
    """Where a program has its own handler of SIGINT, that is called and the training goes on."""
    calls: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: calls.append(number))
    try:
        make(tmp_path).train(houses.data, steps=5, hooks=[Interrupt(3)])
    finally:
        signal.signal(signal.SIGINT, before)
    assert calls == [signal.SIGINT]


def test_without_checkpoints_nothing_is_promised(tmp_path: pathlib.Path) -> None:
    """A job that saves nothing says that nothing is saved."""
    job = make(tmp_path, config={"save_checkpoints_steps": None, "save_checkpoints_secs": None})
    with pytest.raises(KeyboardInterrupt, match="nothing is saved"):
        job.train(houses.data, steps=100, hooks=[Interrupt(3)])


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "inf"])
def test_the_limit_is_checked(
    text: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit that is no positive number is refused by its name before anything is trained."""
    monkeypatch.setenv(interruptions.VARIABLE, text)
    with pytest.raises(errors.InvalidInput, match=interruptions.VARIABLE):
        make(tmp_path).train(houses.data, steps=2, hooks=[Terminate(1)])
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_another_wakeup_fd_is_told_and_put_back(tmp_path: pathlib.Path) -> None:
    """An event loop of the program learns of signals as before, and has its place again after."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer)
    try:
        with pytest.raises(KeyboardInterrupt):
            make(tmp_path).train(houses.data, steps=100, hooks=[Interrupt(2)])
        assert signal.set_wakeup_fd(before) == writer
        assert os.read(reader, 8)[:1] == bytes([signal.SIGINT])
    finally:
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)
