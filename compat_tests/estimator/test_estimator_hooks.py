"""Hooks that use an estimator: early stopping, evaluation in memory, the last checkpoint."""

from __future__ import annotations

import pathlib
import shutil
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.conftest import HAS_STOCK
from compat_tests.programs import tiny
from compat_tests.support.base_jobs import write_scalars
from estimator_bridge import errors, estimator
from tf2_engine.summaries.events import scalars_by_step

if HAS_STOCK:
    from compat_tests.support import stock

experimental = estimator.experimental


def make(namespace: Any, model_dir: pathlib.Path, **options: Any) -> Any:
    settings = {"use_tpu": False, **options}
    return tiny.make(namespace, str(model_dir), [tiny.column()], **settings)


LOSSES = {10: 3.0, 20: 2.0, 30: 2.5, 40: 2.25, 50: 4.0}

# For each hook: how it is made with a namespace, and whether it stops after LOSSES.
CASES: dict[str, tuple[Callable[[Any, Any, dict[str, Any]], Any], bool]] = {
    "above": (lambda e, job, how: e.stop_if_higher_hook(job, "loss", 3.5, **how), True),
    "not above": (lambda e, job, how: e.stop_if_higher_hook(job, "loss", 4.0, **how), False),
    "below": (lambda e, job, how: e.stop_if_lower_hook(job, "loss", 2.1, **how), True),
    "not below": (lambda e, job, how: e.stop_if_lower_hook(job, "loss", 2.0, **how), False),
    "below, but too early": (
        lambda e, job, how: e.stop_if_lower_hook(job, "loss", 2.1, min_steps=21, **how),
        False,
    ),
    "no decrease": (lambda e, job, how: e.stop_if_no_decrease_hook(job, "loss", 30, **how), True),
    "a decrease": (lambda e, job, how: e.stop_if_no_decrease_hook(job, "loss", 31, **how), False),
    "no decrease, counted late": (
        # From step 25 on the best is 2.25 at step 40.
        lambda e, job, how: e.stop_if_no_decrease_hook(job, "loss", 11, min_steps=25, **how),
        False,
    ),
    "no increase": (lambda e, job, how: e.stop_if_no_increase_hook(job, "loss", 30, **how), True),
    "an increase": (lambda e, job, how: e.stop_if_no_increase_hook(job, "loss", 31, **how), False),
}


def steps_run(hook: Any, limit: int, at_end: Callable[[Any], Any] = lambda session: None) -> int:
    """Runs steps until a hook stops them, at most so many; returns how many there were.

    A hook that reads the step in the run that adds to it reads either of two values.
    """
    with tf.Graph().as_default():
        add = tf.assign_add(tf.train.get_or_create_global_step(), 1)
        nothing = tf.no_op()
        done = 0
        with tf.train.SingularMonitoredSession(hooks=[hook]) as session:
            while not session.should_stop() and done < limit:
                session.raw_session().run(add)
                session.run(nothing)
                done += 1
            at_end(session.raw_session())
        return done


def steps_until_stop(hook: Any) -> tuple[int, list[str], bool]:
    """Runs steps with a hook; returns how many, the variables, and the value of its signal."""
    variables: dict[str, Any] = {}

    def read(session: Any) -> None:
        found = {variable.op.name: variable for variable in tf.global_variables()}
        variables.update(session.run(found))

    done = steps_run(hook, 3, read)
    return done, sorted(variables), bool(variables["signal_early_stopping/STOP"])


@pytest.mark.parametrize("case", CASES)
def test_early_stopping_follows_the_evaluations(
    case: str, namespace: Any, tmp_path: pathlib.Path
) -> None:
    """The hook stops after its first look if the events say so; else training goes on."""
    make_hook, is_to_stop = CASES[case]
    job = make(namespace, tmp_path)
    write_scalars(job.eval_dir(), {step: {"loss": loss} for step, loss in LOSSES.items()})
    how = {"run_every_secs": None, "run_every_steps": 1}
    done, names, signal = steps_until_stop(make_hook(namespace.experimental, job, how))

    assert (done, signal) == ((1, True) if is_to_stop else (3, False))
    # The signal to other workers is in checkpoints, as in stock.
    assert names == ["global_step", "signal_early_stopping/STOP"]


READS = {"before": [0], "after": [1], "by turns": [0, 1], "seldom after": [1, 0, 0, 0, 0]}
"""Whether a run reads the global step before (0) or after (1) it counts, run after run."""


RUNS = 12


def asked_at(namespace: Any, model_dir: pathlib.Path, every: int, reads: list[int]) -> list[int]:
    """Returns at which steps the function of either side's early stopping is asked."""
    asked: list[int] = []
    number = 0

    def should_stop() -> bool:
        asked.append(number)
        return False

    hook = namespace.experimental.make_early_stopping_hook(
        make(namespace, model_dir), should_stop, run_every_secs=None, run_every_steps=every
    )
    with tf.Graph().as_default():
        add = tf.assign_add(tf.train.get_or_create_global_step(), 1)
        hook.begin()
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for number in range(1, RUNS + 1):
                context = tf.train.SessionRunContext(None, session)
                fetches = hook.before_run(context).fetches
                values = [session.run(fetches), session.run(add), session.run(fetches)]
                read = values[2 * reads[(number - 1) % len(reads)]]
                hook.after_run(context, tf.train.SessionRunValues(read, None, None))
    return asked


@pytest.mark.parametrize("reads", READS)
@pytest.mark.parametrize("every", [1, 2, 4])
def test_early_stopping_asks_at_steps_of_its_own(
    every: int, reads: str, tmp_path: pathlib.Path
) -> None:
    """Early stopping asks at fixed steps, whether the step is read before or after it counts."""
    assert asked_at(estimator, tmp_path, every, READS[reads]) == [*range(1, RUNS + 1, every)]


@pytest.mark.stock
def test_early_stopping_of_stock_asks_by_what_threads_read(tmp_path: pathlib.Path) -> None:
    """Stock's hook takes the step that was read: a training may stop elsewhere when repeated."""
    assert asked_at(stock.ESTIMATOR, tmp_path, 4, READS["before"]) == [1, 5, 9]
    assert asked_at(stock.ESTIMATOR, tmp_path, 4, READS["by turns"]) == [1, 4, 8, 12]


def test_early_stopping_stops_a_training(tmp_path: pathlib.Path) -> None:
    """Early stopping ends `train` with a checkpoint; without evaluations so far it goes on.

    A hook asks at the first step that it sees. The hook of another training may have seen that
    step, which would be none to ask at.
    """
    job = make(estimator, tmp_path)

    def train(max_steps: int) -> int:
        every = {"run_every_secs": None, "run_every_steps": 1}
        hook = experimental.stop_if_lower_hook(job, "loss", 1.0, **every)
        job.train(tiny.input_fn, max_steps=max_steps, hooks=[hook])
        return int(job.get_variable_value("global_step"))

    assert train(max_steps=3) == 3
    write_scalars(job.eval_dir(), {3: {"loss": 0.5}})
    assert train(max_steps=20) == 4


def test_a_worker_stops_with_its_chief() -> None:
    """A process that is no chief looks at the signal alone."""
    job = type("Estimator", (), {"config": types.SimpleNamespace(is_chief=False)})()
    hook = experimental.make_early_stopping_hook(job, lambda: False)
    with tf.Graph().as_default():
        step = tf.train.get_or_create_global_step()
        with tf.variable_scope("signal_early_stopping"):
            signal = tf.get_variable("STOP", [], tf.bool, tf.zeros_initializer())
        chief_stops = tf.assign(signal, True)
        with tf.train.SingularMonitoredSession(hooks=[hook]) as session:
            session.run(step)
            assert not session.should_stop()
            session.raw_session().run(chief_stops)
            session.run(step)
            assert session.should_stop()


def test_early_stopping_refuses_by_name(tmp_path: pathlib.Path) -> None:
    job = make(estimator, tmp_path)
    with pytest.raises(errors.WrongType, match=r"must have type `tf.estimator.Estimator`, got 3"):
        experimental.stop_if_lower_hook(3, "loss", 1.0)
    with pytest.raises(errors.WrongType, match="`should_stop_fn` must be callable, got 3"):
        experimental.make_early_stopping_hook(job, 3)
    with pytest.raises(errors.InvalidInput, match="one of `run_every_secs` and `run_every_steps`"):
        experimental.make_early_stopping_hook(job, lambda: True, 60, 10)
    write_scalars(job.eval_dir(), {1: {"auc": 0.5}})
    hook = experimental.stop_if_lower_hook(job, "loss", 1.0, None, 0, None, 1)
    with pytest.raises(errors.MissingMetric, match=r"step 1 .* no metric 'loss', only auc"):
        steps_until_stop(hook)


def test_damaged_events_are_read_as_far_as_they_go(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_scalars(tmp_path, {1: {"loss": 0.5}, 2: {"loss": 0.25}})
    [path] = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])

    assert scalars_by_step(str(tmp_path)) == {1: {"loss": 0.5}}
    path.write_bytes(whole)
    assert scalars_by_step(str(tmp_path)) == {1: {"loss": 0.5}, 2: {"loss": 0.25}}


def evaluations(namespace: Any, model_dir: pathlib.Path, *, use_tpu: bool) -> dict[int, Any]:
    """Returns what an in-memory evaluator saw in seven steps, asked every third."""
    job = make(namespace, model_dir, use_tpu=use_tpu, tpu_options={"iterations_per_loop": 1})
    hook = namespace.experimental.InMemoryEvaluatorHook(
        job, tiny.short_input_fn, steps=2, name="memory", every_n_iter=3
    )
    job.train(tiny.input_fn, max_steps=7, hooks=[hook])
    return scalars_by_step(job.eval_dir("memory"))


def test_evaluation_in_memory(tmp_path: pathlib.Path) -> None:
    """InMemoryEvaluatorHook evaluates at the start, every so many steps and at the end."""
    seen = evaluations(estimator, tmp_path, use_tpu=True)
    job = make(estimator, tmp_path, use_tpu=True)
    last = job.evaluate(tiny.short_input_fn, steps=2)

    assert list(seen) == [0, 3, 6, 7]
    assert seen[0]["loss"] > seen[3]["loss"] > seen[7]["loss"]
    # The same numbers in the same graph, and event files hold float32.
    assert seen[7] == {name: np.float32(last[name]) for name in ("loss", "mean")}
    checkpoints = {path.name for path in tmp_path.glob("model.ckpt-*.index")}
    assert checkpoints == {"model.ckpt-0.index", "model.ckpt-7.index"}


@pytest.mark.stock
def test_evaluation_in_memory_is_that_of_stock(tmp_path: pathlib.Path) -> None:
    make(stock.ESTIMATOR, tmp_path / "a").train(tiny.input_fn, max_steps=1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")

    assert evaluations(estimator, tmp_path / "a", use_tpu=False) == evaluations(
        stock.ESTIMATOR, tmp_path / "b", use_tpu=False
    )


def test_evaluations_in_memory_read_their_input_anew(
    namespace: Any, tmp_path: pathlib.Path
) -> None:
    """Each evaluation has all of an input that ends; with stock the later ones have nothing."""

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        loss = tf.reduce_mean(tf.square(labels - tf.get_variable("bias", [])))
        train_op = tf.assign_add(tf.train.get_global_step(), 1)
        metrics = {"mean": tf.metrics.mean(labels)}
        return namespace.EstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics)

    def threes(num_epochs: int | None) -> Any:
        numbers = np.full([4, 1], 3.0, np.float32)
        return namespace.inputs.numpy_input_fn(
            {"x": numbers}, numbers, 2, num_epochs=num_epochs, shuffle=False
        )

    job = namespace.Estimator(model_fn, str(tmp_path))
    hook = namespace.experimental.InMemoryEvaluatorHook(job, threes(1), every_n_iter=2)
    job.train(threes(None), hooks=[hook], max_steps=4)

    later = 3.0 if namespace is estimator else 0.0
    means = {step: each["mean"] for step, each in scalars_by_step(job.eval_dir()).items()}
    assert means == {0: 3.0, 2: later, 4: later}


def test_evaluation_in_memory_refuses_by_name(tmp_path: pathlib.Path) -> None:
    job = make(estimator, tmp_path)
    hook = experimental.InMemoryEvaluatorHook
    for every in (0, -1, None):
        with pytest.raises(errors.InvalidInput, match="`every_n_iter` must be positive"):
            hook(job, tiny.input_fn, every_n_iter=every)
    with pytest.raises(errors.WrongType, match="All hooks must be"):
        hook(job, tiny.input_fn, hooks=[3])
    config = types.SimpleNamespace(num_ps_replicas=1, num_worker_replicas=1)
    with pytest.raises(errors.InvalidInput, match="1 parameter servers and 1 workers"):
        hook(types.SimpleNamespace(config=config), tiny.input_fn)


def stop_at(model_dir: pathlib.Path, last_step: int | None, *, is_chief: bool) -> Any:
    """Returns the hook for the last checkpoint, made with what it needs of an estimator."""
    config = types.SimpleNamespace(is_chief=is_chief)
    job = types.SimpleNamespace(model_dir=str(model_dir), config=config)
    return experimental.make_stop_at_checkpoint_step_hook(
        job, last_step, wait_after_file_check_secs=0
    )


def test_a_chief_stops_at_the_step(tmp_path: pathlib.Path) -> None:
    """The hook of a chief is that for a step; without one it is refused."""
    assert isinstance(stop_at(tmp_path, 3, is_chief=True), tf.train.StopAtStepHook)
    for is_chief in (True, False):
        with pytest.raises(errors.InvalidInput, match="`last_step` must be given"):
            stop_at(tmp_path, None, is_chief=is_chief)


@pytest.mark.parametrize("saved, runs", [(None, 6), (3, 6), (4, 3)])
def test_a_worker_stops_at_the_checkpoint(
    saved: int | None, runs: int, tmp_path: pathlib.Path
) -> None:
    """A worker goes on until a checkpoint has the last step, whatever step it is at.

    It sees a step that may be the one before its own, so the third run may have been the fourth.
    """
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        session.run(step.initializer)
        if saved is not None:
            session.run(tf.assign(step, saved))
            tf.train.Saver().save(session, str(tmp_path / "model.ckpt"), step)
    assert steps_run(stop_at(tmp_path, 4, is_chief=False), limit=6) == runs
