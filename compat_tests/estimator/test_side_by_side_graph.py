"""Programs that use the graph around a TPU's tables, on the bridge and beside stock.

Stock, where it is installed, runs on the software TPU.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.conftest import HAS_STOCK
from compat_tests.programs import jobs, tiny
from compat_tests.references.tolerance import UNIT_ROUNDOFF
from estimator_bridge import estimator
from estimator_bridge.legacy import parameters
from estimator_bridge.run import software_tpu

if HAS_STOCK:
    from compat_tests.support import stock

TABLE = "dense_features/a_embedding/embedding_weights"
STEPS = 4
# Per step each side rounds a few sums of fewer than twenty terms, of a magnitude of at most 4.
ALLOWED = STEPS * 20 * 4.0 * UNIT_ROUNDOFF


ALONE = ("bridge",)
BOTH = ("stock", "bridge")
FULL = (pytest.mark.stock, pytest.mark.full)


def beside(*marks: Any) -> Any:
    """Runs a test on the bridge alone, and beside stock with some marks."""
    return pytest.mark.parametrize("sides", [ALONE, pytest.param(BOTH, marks=marks)], ids="-".join)


def namespace_of(side: str) -> Any:
    return stock.ESTIMATOR if side == "stock" else estimator


def on(side: str) -> contextlib.AbstractContextManager[Any]:
    return software_tpu.stock_on_software_tpu() if side == "stock" else contextlib.nullcontext()


def trained(
    sides: tuple[str, ...],
    folder: pathlib.Path,
    *,
    model_options: Callable[[Any, Any], Mapping[str, Any]] | None = None,
    hook: Callable[[], Any] | None = None,
    input_fn: Any = tiny.input_fn,
    steps: int = STEPS,
    parts: int = 1,
    **options: Any,
) -> list[Any]:
    """Trains the tables by Adagrad, in some calls of equal length; returns the jobs."""
    results = []
    for side in sides:
        namespace, columns = namespace_of(side), [tiny.column()]
        spec = namespace.tpu.experimental.EmbeddingConfigSpec(
            feature_columns=columns, optimization_parameters=parameters.AdagradParameters(0.1)
        )
        with on(side):
            job = tiny.make(
                *(namespace, str(folder / side), columns),
                use_tpu=True,
                spec=spec,
                model_options=model_options,
                **options,
            )
            for done in range(0, steps, steps // parts):
                inputs = lambda params, n=done: input_fn(params).skip(n)  # noqa: E731
                job.train(
                    inputs if done else input_fn,
                    steps=steps // parts,
                    hooks=[hook()] if hook else [],
                )
        results.append(job)
    return results


def same(of_sides: list[Any]) -> dict[str, np.ndarray]:
    """Compares the checkpoints of the sides; returns the bridge's."""
    first, last = (jobs.saved(job) for job in (of_sides[0], of_sides[-1]))
    difference, where = jobs.largest_difference(first, last)
    assert difference <= ALLOWED, where
    return last


@beside(pytest.mark.stock)
def test_a_programs_own_saver(sides: tuple[str, ...], tmp_path: pathlib.Path) -> None:
    """`scaffold_fn` with `Saver(tf.global_variables())` saves and restores tables and slots."""

    def scaffold_fn() -> Any:
        return tf.train.Scaffold(saver=tf.train.Saver(tf.global_variables(), max_to_keep=3))

    plain = trained(sides, tmp_path / "plain")
    with_saver = trained(
        sides, tmp_path / "own", model_options=lambda *_: {"scaffold_fn": scaffold_fn}, parts=2
    )
    saved = same(with_saver)
    assert {TABLE, f"{TABLE}/Adagrad"} <= set(saved)
    assert jobs.largest_difference(jobs.saved(plain[-1]), saved)[0] == 0.0
    evaluated = [job.evaluate(tiny.input_fn, steps=2) for job in (plain[-1], with_saver[-1])]
    assert evaluated[0] == evaluated[1]


@beside(*FULL)
def test_a_table_that_starts_from_a_checkpoint(
    sides: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    """`init_from_checkpoint` in `scaffold_fn` reaches a table, and no slot, by stock's name."""
    base, *_ = trained(sides, tmp_path / "base")

    def scaffold_fn() -> Any:
        tf.train.init_from_checkpoint(base.latest_checkpoint(), {TABLE: TABLE})
        return tf.train.Scaffold()

    of_sides = trained(
        sides, tmp_path / "job", model_options=lambda *_: {"scaffold_fn": scaffold_fn}
    )
    last = same(of_sides)
    start = base.get_variable_value(TABLE)
    assert np.any(last[TABLE] != start)
    for job in of_sides:
        first = jobs.saved(job, jobs.first_checkpoint(job))
        np.testing.assert_array_equal(first[TABLE], start)
        assert np.all(first[f"{TABLE}/Adagrad"] == np.float32(0.1))


@beside(*FULL)
def test_averages_over_global_variables(sides: tuple[str, ...], tmp_path: pathlib.Path) -> None:
    """An ExponentialMovingAverage that `scaffold_fn` makes follows tables and weights."""
    average = tf.train.ExponentialMovingAverage(0.5)
    updates: list[Any] = []

    class Update(tf.train.SessionRunHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            run_context.session.run(updates[-1])

    def scaffold_fn() -> Any:
        kept = [v for v in tf.global_variables() if v.dtype.base_dtype == tf.float32]
        updates.append(average.apply(kept))
        return tf.train.Scaffold()

    of_sides = trained(
        *(sides, tmp_path),
        model_options=lambda *_: {"scaffold_fn": scaffold_fn},
        hook=Update if sides == ALONE else None,
        steps=1,
    )
    last, job = same(of_sides), of_sides[-1]
    first = jobs.saved(job, jobs.first_checkpoint(job))
    for name in (TABLE, "weight"):
        shadow = f"{name}/ExponentialMovingAverage"
        assert shadow in last
        if sides == BOTH:
            continue
        # A difference, a product and a difference, where the mean has a sum and a quotient: five
        # roundings, of numbers at most thrice the mean, since one step moves them little.
        np.testing.assert_allclose(
            last[shadow], (first[name] + last[name]) / 2, rtol=1e-6, err_msg=shadow
        )
        assert np.any(first[name] != last[name])


class Finding(tf.train.SessionRunHook):
    """Reads a table and its slot by stock's names, at the end of a session."""

    results: dict[str, Any]

    def begin(self) -> None:
        graph = tf.get_default_graph()
        self._tensors = {
            name: graph.get_tensor_by_name(f"{name}/part_0/Read/ReadVariableOp:0")
            for name in (TABLE, f"{TABLE}/Adagrad")
        }
        names = {variable.name for variable in tf.global_variables()}
        assert {f"{TABLE}/part_0:0", f"{TABLE}/Adagrad/part_0:0"} <= names
        trained = {variable.op.name for variable in tf.trainable_variables()}
        assert "weight" in trained
        assert f"{TABLE}/part_0" not in trained

    def end(self, session: Any) -> None:
        self.results = session.run(self._tensors)


@beside(pytest.mark.stock)
def test_a_hook_that_finds_a_table_and_a_slot(
    sides: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    """A hook finds a table and its slot by stock's names, and reads the values that are saved."""
    hooks: list[Finding] = []

    def hook() -> Any:
        hooks.append(Finding())
        return hooks[-1]

    of_sides = trained(sides, tmp_path, hook=hook)
    same(of_sides)
    for job, recording in zip(of_sides, hooks, strict=True):
        names = (TABLE, f"{TABLE}/Adagrad")
        jobs.assert_equal(recording.results, {n: job.get_variable_value(n) for n in names})


@pytest.mark.stock
@pytest.mark.full
def test_inputs_per_host_are_split_the_same(tmp_path: pathlib.Path) -> None:
    """With PER_HOST_V1 batches are split the same, also if the input_fn returns tensors."""

    def tensors(params: Any) -> Any:
        return tf.data.make_one_shot_iterator(tiny.input_fn(params)).get_next()

    tpu_options = {"per_host_input_for_training": True}
    for number, input_fn in enumerate((tiny.input_fn, tensors)):
        same(trained(BOTH, tmp_path / str(number), input_fn=input_fn, tpu_options=tpu_options))
