"""Programs that use the graph around a TPU's tables, on stock and on the bridge.

These tests run where stock is installed. Stock runs on the software TPU.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.programs import jobs, tiny
from compat_tests.references.tolerance import UNIT_ROUNDOFF
from compat_tests.support import stock
from estimator_bridge import estimator
from estimator_bridge.run import software_tpu

TABLE = "dense_features/a_embedding/embedding_weights"
STEPS = 4
# Per step each side rounds a few sums of fewer than twenty terms, of a magnitude of at most 4.
ALLOWED = STEPS * 20 * 4.0 * UNIT_ROUNDOFF


def both(
    folder: pathlib.Path,
    *,
    model_options: Callable[[Any, Any], Mapping[str, Any]] | None = None,
    hook: Callable[[], Any] | None = None,
    input_fn: Any = tiny.input_fn,
    **options: Any,
) -> list[Any]:
    """Trains on both sides, tables by Adagrad; returns the two jobs, stock's first."""
    results = []
    for name, namespace in (("stock", stock.ESTIMATOR), ("bridge", estimator)):
        columns = [tiny.column()]
        spec = namespace.tpu.experimental.EmbeddingConfigSpec(
            feature_columns=columns,
            optimization_parameters=tf.tpu.experimental.AdagradParameters(0.1),
        )
        of_stock = namespace is stock.ESTIMATOR
        with software_tpu.stock_on_software_tpu() if of_stock else contextlib.nullcontext():
            job = tiny.make(
                namespace,
                str(folder / name),
                columns,
                use_tpu=True,
                spec=spec,
                model_options=model_options,
                **options,
            )
            job.train(input_fn, steps=STEPS, hooks=[hook()] if hook else [])
        results.append(job)
    return results


def same(pair: list[Any]) -> dict[str, np.ndarray]:
    """Compares the checkpoints of both sides; returns the bridge's."""
    theirs, ours = (jobs.saved(job) for job in pair)
    difference, where = jobs.largest_difference(theirs, ours)
    assert difference <= ALLOWED, where
    return ours


def test_a_programs_own_saver(tmp_path: pathlib.Path) -> None:
    """`scaffold_fn` with `Saver(tf.global_variables())` saves tables and slots on both sides."""

    def scaffold_fn() -> Any:
        return tf.train.Scaffold(saver=tf.train.Saver(tf.global_variables()))

    saved = same(both(tmp_path, model_options=lambda *_: {"scaffold_fn": scaffold_fn}))
    assert {TABLE, f"{TABLE}/Adagrad"} <= set(saved)


@pytest.mark.full
def test_a_table_that_starts_from_a_checkpoint(tmp_path: pathlib.Path) -> None:
    """`init_from_checkpoint` in `scaffold_fn` names the table as stock does."""
    base, _ = both(tmp_path / "base")

    def scaffold_fn() -> Any:
        tf.train.init_from_checkpoint(base.latest_checkpoint(), {TABLE: TABLE})
        return tf.train.Scaffold()

    pair = both(tmp_path / "job", model_options=lambda *_: {"scaffold_fn": scaffold_fn})
    same(pair)
    for job in pair:
        first = jobs.saved(job, jobs.first_checkpoint(job))
        np.testing.assert_array_equal(first[TABLE], base.get_variable_value(TABLE))


@pytest.mark.full
def test_averages_over_global_variables(tmp_path: pathlib.Path) -> None:
    """An ExponentialMovingAverage that `scaffold_fn` makes is saved under the same names."""

    def scaffold_fn() -> Any:
        kept = [v for v in tf.global_variables() if v.dtype.base_dtype == tf.float32]
        tf.train.ExponentialMovingAverage(0.5).apply(kept)
        return tf.train.Scaffold()

    saved = same(both(tmp_path, model_options=lambda *_: {"scaffold_fn": scaffold_fn}))
    averages = {name for name in saved if name.endswith("ExponentialMovingAverage")}
    assert "weight/ExponentialMovingAverage" in averages
    assert any(name.startswith(TABLE) for name in averages)


class Finding(tf.train.SessionRunHook):
    """Reads a table and its slot by stock's names, at the end of a session."""

    results: dict[str, Any]

    def begin(self) -> None:
        graph = tf.get_default_graph()
        self._tensors = {
            name: graph.get_tensor_by_name(f"{name}/part_0/Read/ReadVariableOp:0")
            for name in (TABLE, f"{TABLE}/Adagrad")
        }

    def end(self, session: Any) -> None:
        self.results = session.run(self._tensors)


def test_a_hook_that_finds_a_table_and_a_slot(tmp_path: pathlib.Path) -> None:
    """A hook finds a table and its slot by stock's names, and reads the values that are saved."""
    hooks: list[Finding] = []

    def hook() -> Any:
        hooks.append(Finding())
        return hooks[-1]

    pair = both(tmp_path, hook=hook)
    same(pair)
    for job, recording in zip(pair, hooks, strict=True):
        for name, value in recording.results.items():
            np.testing.assert_array_equal(value, job.get_variable_value(name), err_msg=name)


@pytest.mark.full
@pytest.mark.parametrize("every", [1, 2])
def test_host_calls_of_the_same_steps(every: int, tmp_path: pathlib.Path) -> None:
    """Inside loops the host call runs every `experimental_host_call_every_n_steps`."""
    calls: list[list[float]] = [[]]

    def host_fn(loss: Any) -> Any:
        def record(value: Any) -> Any:
            calls[-1].append(float(value[0]))
            return value

        return tf.py_func(record, [loss], tf.float32)

    def model_options(output: Any, loss: Any) -> dict[str, Any]:
        return {"host_call": (host_fn, [tf.reshape(loss, [1])])}

    def hook() -> Any:
        calls.append([])
        return tf.train.SessionRunHook()

    tpu_options = {"iterations_per_loop": 2, "experimental_host_call_every_n_steps": every}
    same(both(tmp_path, model_options=model_options, hook=hook, tpu_options=tpu_options))
    _, theirs, ours = calls
    assert len(ours) == STEPS // every
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=ALLOWED)


@pytest.mark.full
def test_loops_of_a_duration(tmp_path: pathlib.Path) -> None:
    """With `iterations_per_loop` in seconds both sides stop at the requested step."""
    pair = both(tmp_path, tpu_options={"iterations_per_loop": "1h"})
    assert same(pair)["global_step"] == STEPS


@pytest.mark.full
def test_inputs_per_host_are_split_the_same(tmp_path: pathlib.Path) -> None:
    """With PER_HOST_V1 batches are split the same, also if the input_fn returns tensors."""

    def tensors(params: Any) -> Any:
        return tf.data.make_one_shot_iterator(tiny.input_fn(params)).get_next()

    tpu_options = {"per_host_input_for_training": True}
    for number, input_fn in enumerate((tiny.input_fn, tensors)):
        same(both(tmp_path / str(number), input_fn=input_fn, tpu_options=tpu_options))


def doubling(namespace: Any, sizes: list[Any]) -> Callable[..., Any]:
    """Returns a model_fn that doubles "x", and records its shape."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        sizes.append(features["x"].shape.as_list())
        weight = tf.get_variable("weight", [], initializer=tf.constant_initializer(2.0))
        return namespace.tpu.TPUEstimatorSpec(mode, predictions={"p": features["x"] * weight})

    return model_fn


@pytest.mark.full
@pytest.mark.parametrize("last", [1, 7, 8])
def test_predictions_of_a_last_batch(last: int, tmp_path: pathlib.Path) -> None:
    """A partial batch is padded for the model and cut for the caller.

    Without embeddings, for which stock's predictions on a TPU are broken.
    """
    results = []

    def input_fn(params: Any) -> Any:
        rows = tf.data.Dataset.range(tiny.BATCH + last).batch(params["batch_size"])
        return rows.map(lambda row: {"x": tf.cast(row, tf.float32)[:, tf.newaxis]})

    for name, namespace in (("stock", stock.ESTIMATOR), ("bridge", estimator)):
        sizes: list[Any] = []
        of_stock = namespace is stock.ESTIMATOR
        with software_tpu.stock_on_software_tpu() if of_stock else contextlib.nullcontext():
            job = namespace.tpu.TPUEstimator(
                doubling(namespace, sizes),
                config=namespace.tpu.RunConfig(model_dir=str(tmp_path / name)),
                train_batch_size=tiny.BATCH,
                predict_batch_size=tiny.BATCH,
            )
            values = [float(each["p"][0]) for each in job.predict(input_fn)]
        results.append((values, sizes))
    assert results[0] == results[1]
    assert results[1][0] == [2.0 * number for number in range(tiny.BATCH + last)]
