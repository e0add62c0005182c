"""Hooks, scaffolds, warm starts and SIGTERM of a TPUEstimator with tables."""

from __future__ import annotations

import os
import pathlib
import signal
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.conftest import HAS_STOCK
from compat_tests.estimator.test_tpu_estimator_details import Modes, wrapped
from compat_tests.programs import clicks, jobs, tiny
from compat_tests.support.base_jobs import Terminate
from estimator_bridge import estimator
from estimator_bridge.legacy import parameters
from estimator_bridge.runtime.saving.warm_starting import WarmStartSettings

if HAS_STOCK:
    from compat_tests.support import stock


TABLE, OTHER = (f"dense_features/{key}_embedding/embedding_weights" for key in "ab")
batches = tiny.inputs("a", "b")


def two_batches(params: Any) -> Any:
    return batches(params).take(2)


def make(
    model_dir: pathlib.Path | str,
    *,
    use_tpu: bool = True,
    spec_options: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Returns a job of two tables that Adagrad trains."""
    columns = [tiny.column(), tiny.column(tiny.identity("b"))]
    spec = estimator.tpu.experimental.EmbeddingConfigSpec(
        feature_columns=columns,
        optimization_parameters=parameters.AdagradParameters(0.1),
        **(spec_options or {}),
    )
    return tiny.make(estimator, str(model_dir), columns, use_tpu=use_tpu, spec=spec, **options)


def receiver() -> Any:
    ids = {key: tf.sparse.placeholder(tf.int64, [None, None]) for key in "ab"}
    features = {**ids, "x": tf.placeholder(tf.float32, [None, 1])}
    return estimator.export.ServingInputReceiver(features, features)


# --- Hooks and scaffolds ------------------------------------------------------------------


@pytest.fixture(scope="module")
def source(tmp_path_factory: Any) -> Any:
    """Returns a job that was trained with use_tpu=True."""
    return make(tmp_path_factory.mktemp("source") / "job").train(batches, steps=4)


class Counting(tf.train.SessionRunHook):
    """Records its calls."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self._name, self._calls = name, calls

    def begin(self) -> None:
        self._calls.append(f"{self._name} begins")

    def end(self, session: Any) -> None:
        self._calls.append(f"{self._name} ends")


@pytest.mark.parametrize("use_tpu", [True, pytest.param(False, marks=pytest.mark.full)])
def test_every_mode_has_its_hooks(use_tpu: bool, tmp_path: pathlib.Path) -> None:
    calls: list[str] = []

    def around(inner: Any, features: Any, labels: Any, mode: str, params: Any) -> Any:
        return inner(features, labels, mode, params)._replace(
            training_hooks=(Counting("training", calls),),
            evaluation_hooks=(Counting("evaluation", calls),),
            prediction_hooks=(Counting("prediction", calls),),
        )

    job = wrapped(make(tmp_path, use_tpu=use_tpu), around)
    job.train(batches, steps=1, hooks=[Counting("caller", calls)])
    assert calls == ["caller begins", "training begins", "caller ends", "training ends"]
    calls.clear()
    job.evaluate(two_batches, hooks=[Counting("caller", calls)])
    assert calls == ["caller begins", "evaluation begins", "caller ends", "evaluation ends"]
    calls.clear()
    assert list(job.predict(two_batches, hooks=[Counting("caller", calls)]))
    assert calls == ["caller begins", "prediction begins", "caller ends", "prediction ends"]


def test_a_programs_own_saver_holds_the_tables(source: Any, tmp_path: pathlib.Path) -> None:
    """`scaffold_fn` with `Saver(tf.global_variables())` saves and restores tables and slots."""

    def scaffold_fn() -> Any:
        return tf.train.Scaffold(saver=tf.train.Saver(tf.global_variables(), max_to_keep=3))

    def around(inner: Any, features: Any, labels: Any, mode: str, params: Any) -> Any:
        return inner(features, labels, mode, params)._replace(scaffold_fn=scaffold_fn)

    start = jobs.continue_from(jobs.first_checkpoint(source), str(tmp_path / "own"))
    for _ in range(2):
        with_saver = wrapped(make(start), around)
        with_saver.train(_from_step(with_saver), steps=2)

    assert jobs.largest_difference(jobs.saved(source), jobs.saved(with_saver))[0] == 0.0
    assert with_saver.evaluate(two_batches) == source.evaluate(two_batches)


def _from_step(job: Any) -> Any:
    done = int(job.get_variable_value("global_step"))
    return lambda params: batches(params).skip(done)


def test_a_table_starts_from_a_checkpoint(source: Any, tmp_path: pathlib.Path) -> None:
    """`tf.train.init_from_checkpoint` in `scaffold_fn` reaches a table by stock's name."""

    def scaffold_fn() -> Any:
        tables = {TABLE: TABLE, OTHER: OTHER}
        tf.train.init_from_checkpoint(source.latest_checkpoint(), tables)
        return tf.train.Scaffold()

    def around(inner: Any, features: Any, labels: Any, mode: str, params: Any) -> Any:
        return inner(features, labels, mode, params)._replace(scaffold_fn=scaffold_fn)

    job = wrapped(make(tmp_path / "job"), around)
    job.train(batches, steps=1)

    trained, first = jobs.saved(source), jobs.saved(job, jobs.first_checkpoint(job))
    for name in (TABLE, OTHER):
        np.testing.assert_array_equal(first[name], trained[name])
        assert np.all(first[f"{name}/Adagrad"] == np.float32(0.1))
    assert np.any(jobs.saved(job)[TABLE] != trained[TABLE])


def test_averages_follow_the_variables(tmp_path: pathlib.Path) -> None:
    """An ExponentialMovingAverage over global variables in `scaffold_fn` has the tables."""
    average = tf.train.ExponentialMovingAverage(0.5)
    updates: list[Any] = []

    class Update(tf.train.SessionRunHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            run_context.session.run(updates[-1])

    def scaffold_fn() -> Any:
        kept = [v for v in tf.global_variables() if v.dtype.base_dtype == tf.float32]
        updates.append(average.apply(kept))
        return tf.train.Scaffold()

    def around(inner: Any, features: Any, labels: Any, mode: str, params: Any) -> Any:
        if mode != Modes.TRAIN:
            return inner(features, labels, mode, params)
        return inner(features, labels, mode, params)._replace(
            scaffold_fn=scaffold_fn, training_hooks=(Update(),)
        )

    job = wrapped(make(tmp_path), around)
    job.train(batches, steps=1)

    first, last = jobs.saved(job, jobs.first_checkpoint(job)), jobs.saved(job)
    for name in (TABLE, "weight"):
        shadow = f"{name}/ExponentialMovingAverage"
        # A difference, a product and a difference, where the mean has a sum and a quotient: five
        # roundings, of numbers at most thrice the mean, since one step moves them little.
        np.testing.assert_allclose(
            last[shadow], (first[name] + last[name]) / 2, rtol=1e-6, err_msg=shadow
        )
        assert np.any(first[name] != last[name])


def test_a_hook_finds_a_table_and_a_slot(tmp_path: pathlib.Path) -> None:
    """A hook finds tables by stock's names, with `part_0`, and reads the values that are saved.

    No table is among the trainable variables.
    """
    values: dict[str, Any] = {}

    class Hook(tf.train.SessionRunHook):
        def begin(self) -> None:
            self._tensors = {
                name: tf.get_default_graph().get_tensor_by_name(
                    f"{name}/part_0/Read/ReadVariableOp:0"
                )
                for name in (TABLE, f"{TABLE}/Adagrad")
            }
            names = {variable.name for variable in tf.global_variables()}
            assert {f"{TABLE}/part_0:0", f"{TABLE}/Adagrad/part_0:0"} <= names
            trained = {variable.op.name for variable in tf.trainable_variables()}
            assert "weight" in trained
            assert f"{TABLE}/part_0" not in trained

        def end(self, session: Any) -> None:
            values.update(session.run(self._tensors))

    job = make(tmp_path)
    job.train(batches, steps=2, hooks=[Hook()])

    for name, value in values.items():
        np.testing.assert_array_equal(value, job.get_variable_value(name), err_msg=name)
    assert set(values) == {TABLE, f"{TABLE}/Adagrad"}


# --- Warm start ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use_tpu, is_exported",
    [
        (True, False),
        (False, True),
        pytest.param(True, True, marks=pytest.mark.full),
        pytest.param(False, False, marks=pytest.mark.full),
    ],
)
def test_tables_are_warm_started(
    source: Any, use_tpu: bool, is_exported: bool, tmp_path: pathlib.Path
) -> None:
    """A warm start from a directory or a SavedModel restores tables and weights, and no slots.

    A job without a TPU restores the tables of one with a TPU.
    """
    path = source.model_dir
    if is_exported:
        path = source.export_saved_model(tmp_path / "exported", receiver)
    trained = jobs.saved(source)
    job = make(tmp_path / "job", use_tpu=use_tpu, warm_start_from=path)
    job.train(batches, steps=1)
    first = jobs.saved(job, jobs.first_checkpoint(job))
    for name in (TABLE, OTHER, "weight"):
        np.testing.assert_array_equal(first[name], trained[name], err_msg=name)
    if use_tpu:
        assert np.all(first[f"{TABLE}/Adagrad"] == np.float32(0.1))
    assert first["global_step"] == 0


def test_settings_reach_tables_and_slots(source: Any, tmp_path: pathlib.Path) -> None:
    """Settings may be a pattern for one table, a list with its slot, or a table of another name."""
    trained = jobs.saved(source)

    def start(name: str, **settings: Any) -> dict[str, np.ndarray]:
        chosen = WarmStartSettings(source.latest_checkpoint(), **settings)
        job = make(tmp_path / name, warm_start_from=chosen)
        job.train(batches, steps=1)
        steps = min(int(path.name[11:-6]) for path in (tmp_path / name).glob("*.index"))
        return jobs.saved(job, f"{job.model_dir}/model.ckpt-{steps}")

    pattern = start("pattern", vars_to_warm_start=TABLE)
    np.testing.assert_array_equal(pattern[TABLE], trained[TABLE])
    assert np.all(pattern[f"{TABLE}/Adagrad"] == np.float32(0.1))
    assert np.any(pattern[OTHER] != trained[OTHER])

    listed = start("listed", vars_to_warm_start=[TABLE])
    np.testing.assert_array_equal(listed[f"{TABLE}/Adagrad"], trained[f"{TABLE}/Adagrad"])

    every = start("every", vars_to_warm_start=[".*"])
    assert every["global_step"] == 4  # a list reaches it too, as in stock
    for name in set(every) - {name for name in every if name.startswith("tpu_embedding_dummy")}:
        np.testing.assert_array_equal(every[name], trained[name], err_msg=name)

    vocabularies = {}
    for which, order in (("old", 1), ("new", -1)):
        vocabularies[which] = tmp_path / which
        vocabularies[which].write_text("".join(f"{n}\n" for n in range(tiny.ROWS)[::order]))
    moved = start(
        "moved",
        vars_to_warm_start=None,
        var_name_to_vocab_info={
            TABLE: tf.train.VocabInfo(
                new_vocab=str(vocabularies["new"]),
                new_vocab_size=tiny.ROWS,
                num_oov_buckets=0,
                old_vocab=str(vocabularies["old"]),
            )
        },
    )
    np.testing.assert_array_equal(moved[TABLE], trained[TABLE][::-1])
    with pytest.raises(ValueError, match="itms"):
        start("misspelt", var_name_to_prev_var_name={"itms": TABLE})


# --- SIGTERM ------------------------------------------------------------------------------


def test_sigterm_saves_the_tables(tmp_path: pathlib.Path) -> None:
    """A pipelined training that is stopped has the values of one with as many steps."""
    options = {
        "spec_options": {"pipeline_execution_with_tensor_core": True},
        "tpu_options": {"iterations_per_loop": 1},
    }
    whole, job = (make(tmp_path / name, **options) for name in ("whole", "stopped"))
    whole.train(batches, steps=3)
    calls: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda signum, frame: calls.append(signum))
    try:
        job.train(batches, steps=100, hooks=[Terminate(3)])
    finally:
        signal.signal(signal.SIGTERM, before)

    assert calls == [signal.SIGTERM]
    assert jobs.saved(job)["global_step"] == 3
    assert jobs.largest_difference(jobs.saved(whole), jobs.saved(job))[0] == 0.0


def test_sigterm_does_not_wait_for_a_loop(tmp_path: pathlib.Path) -> None:
    """A training whose loops are long stops in the middle of one."""
    job = jobs.make(str(tmp_path), tpu_options={"iterations_per_loop": 1000})

    def kill(number: Any) -> Any:
        if number == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return number

    def input_fn(params: Any) -> Any:
        numbers = tf.data.Dataset.range(2000).map(
            lambda number: tf.ensure_shape(tf.py_function(kill, [number], tf.int64), [])
        )
        return numbers.map(lambda number: clicks.batch_of(number, params["batch_size"]))

    before = signal.signal(signal.SIGTERM, lambda signum, frame: None)
    try:
        job.train(input_fn, steps=1000)
    finally:
        signal.signal(signal.SIGTERM, before)

    # The input is read ahead of the steps.
    assert 0 < jobs.saved(job)["global_step"] < 100


# --- Beside stock -------------------------------------------------------------------------


def calls_of_a_job(namespace: Any, model_dir: str) -> list[Any]:
    """Returns the calls of functions and hooks of either side's job, in order."""
    seen: list[Any] = []
    columns = clicks.columns()
    inner = clicks.make_model_fn(namespace, columns, cross_shard=False)

    def model_fn(features: Any, labels: Any, mode: str, params: Any, config: Any) -> Any:
        seen.append(("model", mode, params, labels is None, os.path.basename(config.model_dir)))
        return inner(features, labels, mode, params)._replace(
            training_hooks=(Counting("training", seen),),
            evaluation_hooks=(Counting("evaluation", seen),),
            prediction_hooks=(Counting("prediction", seen),),
        )

    def input_fn(params: Any, config: Any, mode: str) -> Any:
        seen.append(("input", mode, params, os.path.basename(config.model_dir)))
        return clicks.short_input_fn(params)

    job = namespace.tpu.TPUEstimator(
        model_fn=model_fn,
        use_tpu=False,
        config=clicks.run_config(namespace, model_dir),
        train_batch_size=16,
        eval_batch_size=8,
        predict_batch_size=4,
        params={"rate": 0.1},
        embedding_config_spec=namespace.tpu.experimental.EmbeddingConfigSpec(
            feature_columns=columns,
            optimization_parameters=tf.tpu.experimental.AdagradParameters(0.1),
        ),
    )
    job.train(input_fn, steps=2, hooks=[Counting("caller", seen)])
    job.evaluate(input_fn, hooks=[Counting("caller", seen)])
    list(job.predict(input_fn, hooks=[Counting("caller", seen)]))
    return seen


@pytest.mark.stock
def test_functions_are_told_what_stock_tells_them(tmp_path: pathlib.Path) -> None:
    """With use_tpu=False batch sizes, params, modes and the order of hooks are stock's."""
    theirs = calls_of_a_job(stock.ESTIMATOR, str(tmp_path / "stock" / "job"))
    ours = calls_of_a_job(estimator, str(tmp_path / "bridge" / "job"))

    assert theirs == ours
    assert len(ours) == 18
