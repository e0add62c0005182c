"""Training loops of several steps, as seen by hooks, checkpoints and host calls.

Oracle: the rules in the code of stock's TPUEstimator. With use_tpu=False stock has no such loop,
and with use_tpu=True it needs a TPU.
"""

from __future__ import annotations

import logging
import pathlib
import re
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from compat_tests.programs import jobs, tiny
from estimator_bridge import estimator
from estimator_bridge.legacy.run_config import parse_iterations_per_loop
from estimator_bridge.runtime.loop.training_session import report_interval


class Recorder(tf.train.SessionRunHook):
    """Records the global step around every call of the hooks."""

    def __init__(self) -> None:
        self.before: list[int] = []
        self.after: list[int] = []
        self.ends = 0

    def before_run(self, run_context: Any) -> None:
        self.before.append(_step(run_context.session))

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.after.append(_step(run_context.session))

    def end(self, session: Any) -> None:
        self.ends += 1


def _step(session: Any) -> int:
    return int(session.run(tf.train.get_global_step(session.graph)))


def trained(
    model_dir: pathlib.Path,
    iterations: int | str,
    input_fn: Any = tiny.input_fn,
    **arguments: Any,
) -> tuple[Any, Recorder]:
    """Returns a trained job of one table, and the records of its hook."""
    options = {"iterations_per_loop": iterations}
    job = tiny.make(estimator, str(model_dir), [tiny.column()], use_tpu=True, tpu_options=options)
    recorder = Recorder()
    job.train(input_fn, hooks=[recorder], **arguments)
    return job, recorder


def test_hooks_are_called_once_per_loop(tmp_path: pathlib.Path) -> None:
    """The step advances by the iterations between two calls; the last loop has the rest.

    The length of a loop changes no number.
    """
    ended = []
    for iterations, ends in ((1, [1, 2, 3, 4, 5, 6, 7]), (3, [3, 6, 7]), (7, [7]), (100, [7])):
        job, recorder = trained(tmp_path / str(iterations), iterations, steps=7)
        assert (recorder.before, recorder.after) == ([0, *ends[:-1]], ends)
        assert recorder.ends == 1
        ended.append(jobs.saved(job))
    for values in ended:
        jobs.assert_equal(values, ended[0])
    assert ended[0]["global_step"] == 7


def train_on_numbers(
    model_dir: pathlib.Path, numbers: list[Any], steps: int, hooks: Any = (), **options: Any
) -> None:
    """Trains on batches with a number, whose tensor [1] is added to a list.

    Args:
        options: of `tiny.make`.
    """
    columns = [tiny.column()]
    plain = tiny.plain(columns)

    def body(features: Any) -> Any:
        numbers.append(features["number"][:1])
        return plain(features)

    input_fn = tiny.inputs("a", number=lambda number: tf.fill([tiny.BATCH], number))
    job = tiny.make(estimator, str(model_dir), columns, body, use_tpu=True, **options)
    job.train(input_fn, steps=steps, hooks=hooks)


def test_hooks_fetch_from_the_last_step_of_a_loop(tmp_path: pathlib.Path) -> None:
    numbers: list[Any] = []
    seen: list[int] = []

    class Hook(tf.train.SessionRunHook):
        def before_run(self, run_context: Any) -> Any:
            return tf.train.SessionRunArgs(numbers[0])

        def after_run(self, run_context: Any, run_values: Any) -> None:
            seen.append(int(run_values.results[0]))

    train_on_numbers(tmp_path, numbers, 5, [Hook()], tpu_options={"iterations_per_loop": 3})
    assert seen == [2, 4]


@pytest.mark.parametrize(
    ("every", "expected"), [(1, [0, 1, 2, 3, 4, 5, 6]), (2, [0, 2, 4, 6]), (3, [0, 3, 4])]
)
def test_the_host_call_runs_inside_of_loops(
    every: int, expected: list[int], tmp_path: pathlib.Path
) -> None:
    """In each loop the host call runs in the first step and every k-th after it."""
    numbers: list[Any] = []
    called: list[int] = []

    def host_fn(number: Any) -> Any:
        def record(value: Any) -> Any:
            called.append(int(value[0]))
            return value

        return tf.py_func(record, [number], tf.int64)

    loops = {"iterations_per_loop": 4, "experimental_host_call_every_n_steps": every}
    host_call = lambda output, loss: {"host_call": (host_fn, numbers)}  # noqa: E731
    train_on_numbers(tmp_path, numbers, 7, tpu_options=loops, model_options=host_call)
    assert called == expected


def five_batches(params: Any) -> Any:
    return tiny.input_fn(params).take(5)


def test_an_input_that_ends_inside_a_loop_ends_the_training(tmp_path: pathlib.Path) -> None:
    """With five batches in loops of three, hooks see one loop, and all five steps are saved."""
    job, recorder = trained(tmp_path, 3, five_batches, steps=100)

    assert (recorder.before, recorder.after, recorder.ends) == ([0, 3], [3], 1)
    assert job.latest_checkpoint().endswith("model.ckpt-5")


def test_an_input_that_ends_in_the_first_loop_has_made_steps(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The loss of the last step that ended is reported, though no loop has ended."""
    caplog.set_level(logging.INFO, "tensorflow")
    job, recorder = trained(tmp_path, 100, five_batches, steps=100)

    assert recorder.after == []
    assert job.latest_checkpoint().endswith("model.ckpt-5")
    assert "Training made no steps" not in caplog.text
    # Of whatever size.
    assert re.search(r"Loss for final step: \d", caplog.text)


@pytest.mark.full
def test_a_loop_may_be_given_in_seconds(tmp_path: pathlib.Path) -> None:
    """A loop of an hour makes all steps at once; one of a second ends, and the next begins."""
    _, hour = trained(tmp_path / "hour", "1h", steps=5)
    slow_batches = lambda params: tiny.input_fn(params).map(_slowly)  # noqa: E731
    _, second = trained(tmp_path / "second", "1s", slow_batches, steps=8)

    assert hour.after == [5]
    assert second.after[-1] == 8
    # A step takes at least 0.3 s, so that a loop of 1 s makes at most 5 steps.
    assert len(second.after) >= 2
    assert second.before == [0, *second.after[:-1]]


def _slowly(features: Any, labels: Any) -> Any:
    def wait(value: Any) -> Any:
        import time

        time.sleep(0.3)
        return value

    waited = tf.py_func(wait, [labels], tf.float32)
    waited.set_shape(labels.shape)
    return features, waited


def test_reports_come_at_the_ends_of_loops() -> None:
    """A hook that counts calls reports after as many loops as hold the steps, rounded up."""
    for iterations, expected in (
        (1, {"every_n_iter": 100}),
        (30, {"every_n_iter": 4}),
        (1000, {"every_n_iter": 1}),
        ("2m", {"every_n_secs": 120}),
    ):
        interval = report_interval(parse_iterations_per_loop(iterations), 100)
        assert interval == expected, iterations


def test_an_evaluation_of_unknown_length_is_a_call_per_step(tmp_path: pathlib.Path) -> None:
    """In evaluations hooks are called for every batch without `steps`, and once with it."""
    job = tiny.make(estimator, str(tmp_path), [tiny.column()], use_tpu=True)
    job.train(tiny.input_fn, steps=2)
    ends, endless = Recorder(), Recorder()
    job.evaluate(lambda params: tiny.input_fn(params).take(3), hooks=[ends])
    job.evaluate(tiny.input_fn, steps=3, hooks=[endless])

    assert (ends.after, endless.after) == ([2, 2, 2], [2])
