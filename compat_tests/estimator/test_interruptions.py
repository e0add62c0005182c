"""SIGTERM and Ctrl-C save the trained state, and end the process in time even if input hangs."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from compat_tests.programs import houses, stuck
from compat_tests.support.base_jobs import Terminate, make
from compat_tests.support.paths import ROOT
from estimator_bridge import errors, estimator
from tf2_engine import interruptions

SECONDS = 4.0
"""What the processes are given to end in."""
SLACK = 20.0
"""On a machine that does other things; what is stuck would sleep for a thousand seconds."""


@dataclasses.dataclass(frozen=True)
class Ended:
    """The end of a process: its status, its stderr, and the seconds since the signal."""

    status: int
    output: str
    seconds: float


@pytest.fixture(autouse=True)
def usual_ctrl_c() -> Iterator[None]:
    """Ctrl-C is Python's, also where a shell runs the tests in its background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt(folder: pathlib.Path, how: str, number: int, *command: str) -> Ended:
    """Starts a job, signals when it is stuck; returns how it ended.

    Args:
        command: the arguments of Python before those of the program; the last one is its task.
    """
    directory = folder / "job"
    directory.mkdir()
    task = command[-1]
    environment = {**os.environ, interruptions.VARIABLE: str(SECONDS), "PYTHONPATH": str(ROOT)}
    environment["TF_USE_LEGACY_KERAS"] = "1"  # for `Trainer`
    process = subprocess.Popen(
        [sys.executable, *command[:-1], str(directory), how, task],
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
        _, output = process.communicate(timeout=120)
        assert process.returncode in (-number, 128 + number), output
        assert "run" not in command or "Traceback" not in output
        return Ended(process.returncode, output, time.monotonic() - signalled)
    finally:
        process.kill()


def is_stuck(directory: pathlib.Path, how: str) -> bool:
    """Returns whether the job waits, or is in the middle of its steps."""
    if how == "never":
        return (directory / "model" / "model.ckpt-4.index").exists()
    # A buffer is filled before the steps are made.
    is_saved = (directory / "model" / "model.ckpt-2.index").exists()
    return is_saved and (directory / "stuck").exists()


def last_step(folder: pathlib.Path) -> int:
    return int(tf.train.latest_checkpoint(str(folder / "job/model")).rpartition("-")[2])


ESTIMATOR, TRAINER = "compat_tests.programs.stuck", "compat_tests.programs.stuck_trainer"


@pytest.mark.full
@pytest.mark.parametrize(
    "program, how",
    [
        *((program, how) for program in (ESTIMATOR, TRAINER) for how in ("python", "prefetched")),
        (ESTIMATOR, "pipelined"),
    ],
)
def test_a_stuck_input_ends_with_a_checkpoint(
    program: str, how: str, tmp_path: pathlib.Path
) -> None:
    """While its input gives no batch, SIGTERM saves the steps that were made and ends the process.

    Of the three steps that were made the third has no checkpoint before; where updates are
    pipelined it is the first of a device loop.
    """
    ended = interrupt(tmp_path, how, signal.SIGTERM, "-m", program, "train")
    assert ended.seconds < SECONDS + SLACK
    assert last_step(tmp_path) == stuck.STEPS, ended.output
    assert f"step {stuck.STEPS} is saved" in ended.output


@pytest.mark.full
@pytest.mark.parametrize("how", ["python", "prefetched", "never"])
@pytest.mark.parametrize("program", [ESTIMATOR, TRAINER])
def test_ctrl_c_is_one_line(program: str, how: str, tmp_path: pathlib.Path) -> None:
    """After Ctrl-C `run` says what is saved, in a line, and ends with status 130."""
    ended = interrupt(tmp_path, how, signal.SIGINT, *run_of(program), "train")
    assert ended.status == 130, ended.output
    assert ended.seconds < SECONDS + SLACK
    step = last_step(tmp_path)
    # Once a Checkpoint is written, TensorFlow 2.21 has two handlers that show its logger's lines.
    lines = {line for line in ended.output.splitlines() if f"step {step} is saved in" in line}
    # The line of a step that was cancelled comes before the last one.
    assert 1 <= len(lines) <= (2 if how == "prefetched" else 1), ended.output
    assert step == stuck.STEPS or how == "never"


@pytest.mark.full
@pytest.mark.parametrize("task", ["evaluate", "predict"])
@pytest.mark.parametrize("how", ["python", "prefetched"])
@pytest.mark.parametrize("program", [ESTIMATOR, TRAINER])
def test_ctrl_c_ends_what_is_stuck_after_a_training(
    program: str, how: str, task: str, tmp_path: pathlib.Path
) -> None:
    """Ctrl-C ends an evaluation or a prediction, and names the checkpoint, which it leaves."""
    ended = interrupt(tmp_path, how, signal.SIGINT, *run_of(program), task)
    assert ended.status == 130, ended.output
    assert ended.seconds < SECONDS + SLACK
    assert last_step(tmp_path) == stuck.STEPS
    name = {"evaluate": "evaluation", "predict": "prediction"}[task]
    assert f"the {name} of {tmp_path}/job/model/model.ckpt-3 is not finished" in ended.output


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("program", [ESTIMATOR, TRAINER])
def test_an_evaluation_within_a_training_is_ended(
    program: str, number: int, tmp_path: pathlib.Path
) -> None:
    ended = interrupt(tmp_path, "python", number, *run_of(program), "between")
    assert ended.seconds < SECONDS + SLACK
    assert f"step {last_step(tmp_path)} is saved in" in ended.output


@pytest.mark.full
@pytest.mark.parametrize("program", [ESTIMATOR, TRAINER])
def test_a_slow_step_is_waited_for(program: str, tmp_path: pathlib.Path) -> None:
    """A step that has its batch is finished and saved, though it takes longer than the limit."""
    ended = interrupt(tmp_path, "slow", signal.SIGTERM, "-m", program, "train")
    assert ended.status == -signal.SIGTERM, ended.output
    assert ended.seconds >= stuck.SLOW_SECONDS - 2
    assert last_step(tmp_path) == stuck.STEPS + 1, ended.output


def run_of(program: str) -> tuple[str, ...]:
    """Returns the arguments of Python that have `run` start a program."""
    return "-m", "estimator_bridge", "run", str(ROOT / f"{program.replace('.', '/')}.py")


class Interrupt(tf.train.SessionRunHook):
    """Presses Ctrl-C before a step, or in seconds from then."""

    def __init__(self, step: int, seconds: float = 0.0) -> None:
        self._step, self._seconds, self._steps = step, seconds, 0

    def before_run(self, run_context: Any) -> None:
        self._steps += 1
        if self._steps == self._step:
            if self._seconds:
                threading.Timer(self._seconds, os.kill, (os.getpid(), signal.SIGINT)).start()
            else:
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


def starved() -> Any:
    """Returns batches that wait for a queue with two elements, which a session's end ends."""
    queue = tf.FIFOQueue(2, tf.int64, [])
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, queue.enqueue_many([[0, 1]]))
    batch = tf.data.make_one_shot_iterator(houses.data()).get_next()
    with tf.control_dependencies([queue.dequeue()]):
        return tf.nest.map_structure(tf.identity, batch)


@pytest.mark.parametrize("task", ["evaluation", pytest.param("prediction", marks=pytest.mark.full)])
def test_ctrl_c_ends_what_only_reads(
    task: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that does not return is ended; the error names the checkpoint, and no insides."""
    monkeypatch.setenv(interruptions.VARIABLE, "2")
    job = make(tmp_path)
    job.train(houses.data, steps=2)
    steps = (
        job.evaluate if task == "evaluation" else lambda *args, **kw: [*job.predict(*args, **kw)]
    )
    with pytest.raises(KeyboardInterrupt, match=f"the {task} of .*-2 is not finished") as raised:
        steps(starved, hooks=[Interrupt(3, seconds=1.0)])
    files = {frame.path.name for frame in raised.traceback}
    assert files == {pathlib.Path(__file__).name, "base_estimator.py"}
    assert signal.set_wakeup_fd(-1) == -1


class Waiting(interruptions.SavedSteps):
    """Steps of which one waits for its input all the time."""

    running, has_begun = 1, True

    def __init__(self) -> None:
        super().__init__()
        self.num_rescues = 0

    def waits(self) -> bool:
        return True

    def rescue(self, still_waits: interruptions.Condition) -> bool:
        self.num_rescues += 1
        return False

    def cancel(self) -> None:
        """Ends nothing."""

    def state(self) -> str:
        return ""


def test_a_fork_has_signals_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM ends a process that a training forks, such as a worker of its input, and it alone."""
    monkeypatch.setenv(interruptions.VARIABLE, "0.4")
    steps = Waiting()
    with interruptions.held_back(steps):
        worker = os.fork()
        if worker == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        status = os.waitpid(worker, 0)[1]
        time.sleep(1.0)
        assert (status, steps.stop_requested, steps.num_rescues) == (signal.SIGTERM, None, 0)
        signal.raise_signal(signal.SIGINT)
        began = time.monotonic()
        while not steps.num_rescues:
            assert time.monotonic() - began < 60, "a signal of the process itself rescues nothing"
            time.sleep(0.05)
        assert steps.stop_requested == signal.SIGINT
        steps.stop_requested = None


def test_a_handler_of_the_program_gets_ctrl_c(tmp_path: pathlib.Path) -> None:
    calls: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: calls.append(number))
    try:
        make(tmp_path).train(houses.data, steps=5, hooks=[Interrupt(3)])
    finally:
        signal.signal(signal.SIGINT, before)
    assert calls == [signal.SIGINT]


def test_without_checkpoints_nothing_is_promised(tmp_path: pathlib.Path) -> None:
    job = make(tmp_path, config={"save_checkpoints_steps": None, "save_checkpoints_secs": None})
    with pytest.raises(KeyboardInterrupt, match="nothing has been saved"):
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


def uninitialized() -> tf.Tensor:
    """Returns the next number of an input that is never started: reading it fails."""
    return tf.data.make_initializable_iterator(tf.data.Dataset.range(9)).get_next()


def unread(features: Any) -> tf.Tensor:
    """The model makes no use of an input."""
    del features
    uninitialized()
    return tf.constant(0.0)


def read_by_hooks(features: Any) -> tf.Tensor:
    """An input stands beside that of the model, for a hook of some steps."""
    uninitialized()
    return tf.reduce_sum(tf.cast(features, tf.float32))


def in_a_branch(features: Any) -> tf.Tensor:
    """An input is read in a branch of TensorFlow 1 that no step takes."""
    number = tf.reduce_sum(tf.cast(features, tf.float32))
    tf.disable_control_flow_v2()
    try:
        return tf.cond(number < 0, lambda: tf.cast(uninitialized(), tf.float32), lambda: number)
    finally:
        tf.enable_control_flow_v2()


@pytest.mark.parametrize("loss_of", [unread, read_by_hooks, in_a_branch])
def test_steps_read_no_more_than_their_model(loss_of: Any, tmp_path: pathlib.Path) -> None:
    """The count of batches makes no step read an input that it does not read anyway."""

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        del labels
        loss = loss_of(features)
        with tf.control_dependencies([loss]):
            train_op = tf.assign_add(tf.train.get_global_step(), 1)
        return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    def input_fn() -> Any:
        return uninitialized() if loss_of is unread else tf.data.Dataset.range(9).batch(3)

    job = estimator.Estimator(model_fn, str(tmp_path))
    job.train(input_fn, steps=2)
    assert tf.train.load_variable(str(tmp_path), "global_step") == 2
