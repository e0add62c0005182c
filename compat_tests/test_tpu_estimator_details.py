"""TPUEstimator in its details: what functions are told, padding, hooks, scaffolds, warm starts."""

from __future__ import annotations

import os
import pathlib
import signal
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.conftest import HAS_STOCK
from compat_tests.programs import clicks, clicks_served, jobs
from compat_tests.test_base_estimator import Terminate
from compat_tests.test_estimator import TABLES
from estimator_bridge import errors, estimator
from estimator_bridge.legacy import parameters
from estimator_bridge.legacy.warm_start import WarmStartSettings
from estimator_bridge.runtime.estimator import Estimator

if HAS_STOCK:
    from compat_tests import stock

Modes = estimator.ModeKeys


def wrapped(job: Any, around: Any) -> Any:
    """Makes a job call `around(inner model_fn, features, labels, mode, params)`; returns it."""
    inner = job._model_fn

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        return around(inner, features, labels, mode, params)

    job._model_fn = model_fn
    return job


def test_a_tpu_estimator_is_an_estimator(tmp_path: pathlib.Path) -> None:
    """Programs that ask for the base class get what they expect."""
    assert issubclass(estimator.tpu.TPUEstimator, Estimator)
    assert isinstance(jobs.make(str(tmp_path)), Estimator)


# --- What functions are told --------------------------------------------------------------


def told(tmp_path: pathlib.Path, input_mode: int, cores: int) -> dict[str, list[Any]]:
    """Returns what input_fn and model_fn of a plain model are told, by mode and function."""
    seen: dict[str, list[Any]] = {}

    def input_fn(params: Any, mode: str) -> Any:
        seen.setdefault(f"{mode} input", []).append(params)
        data = tf.data.Dataset.from_tensors(tf.ones([params["batch_size"], 1]))
        return data.repeat(4).map(lambda x: (x, x))

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        seen.setdefault(f"{mode} model", []).append((params, features.shape.as_list()))
        value = features * tf.get_variable("weight", [])
        train_op = tf.train.get_global_step().assign_add(1)
        return estimator.tpu.TPUEstimatorSpec(
            mode,
            loss=None if labels is None else tf.reduce_mean(value - labels),
            train_op=train_op,
            predictions={"p": value},
        )

    config = estimator.tpu.RunConfig(
        model_dir=str(tmp_path),
        tpu_config=estimator.tpu.TPUConfig(
            num_shards=cores, per_host_input_for_training=input_mode
        ),
    )
    job = estimator.tpu.TPUEstimator(
        model_fn,
        config=config,
        params={"own": 1},
        train_batch_size=8,
        eval_batch_size=8,
        predict_batch_size=8,
    )
    job.train(input_fn, steps=1)
    job.evaluate(input_fn, steps=1)
    assert len(list(job.predict(input_fn))) > 0
    assert job.params == {"own": 1}
    return seen


CONFIG = estimator.tpu.InputPipelineConfig


@pytest.mark.parametrize(
    ("input_mode", "train", "inference"),
    [
        # params["batch_size"] of input_fn and model_fn; calls of an input_fn; replicas of a call
        (CONFIG.PER_HOST_V1, (8, 4, 1, 2), (8, 4, 1, 2)),
        (CONFIG.PER_HOST_V2, (4, 4, 1, 2), (4, 4, 1, 2)),
        (CONFIG.PER_SHARD_V1, (4, 4, 2, 1), (8, 4, 1, 2)),
        (CONFIG.BROADCAST, (8, 8, 1, 2), (8, 8, 1, 2)),
    ],
)
def test_functions_are_told_of_the_cores(
    input_mode: int, train: Any, inference: Any, tmp_path: pathlib.Path
) -> None:
    """Batch sizes, use_tpu and a context that knows this call of two cores' input."""
    seen = told(tmp_path, input_mode, 2)

    for mode, (given, used, calls, replicas) in (
        (Modes.TRAIN, train),
        (Modes.EVAL, inference),
        (Modes.PREDICT, inference),
    ):
        inputs, models = seen[f"{mode} input"], seen[f"{mode} model"]
        assert [params["batch_size"] for params in inputs] == [given] * calls, mode
        for index, params in enumerate(inputs):
            context = params["context"]
            host = "/replica:0/task:0/device:CPU:0"
            assert context.current_input_fn_deployment() == (host, index, calls, replicas), mode
            assert context.current_host == 0
            assert (context.num_replicas, context.num_hosts) == (2, 1)
            assert context.num_of_replicas_per_host == 2
            assert context.device_for_replica(1) == (host, 1)
            assert context.tpu_host_placement_function(host_id=0) == host
            with pytest.raises(RuntimeError, match="model_fn"):
                _ = context.device_assignment
            with pytest.raises(errors.InvalidInput, match="replica 2"):
                context.device_for_replica(2)
            with pytest.raises(errors.InvalidInput, match="host 1"):
                context.tpu_host_placement_function(1)
        # One core makes the predictions, of all that an input_fn gives at once.
        used = given if mode == Modes.PREDICT else used
        assert len(models) == (1 if mode == Modes.PREDICT else 2), mode
        for params, shape in models:
            assert (params["batch_size"], shape) == (used, [used, 1]), mode
            assert params["use_tpu"] is True
            assert params["own"] == 1
            assert params["context"].device_assignment is None
            with pytest.raises(RuntimeError, match="input_fn"):
                params["context"].current_input_fn_deployment()
            with pytest.raises(RuntimeError, match="input_fn"):
                _ = params["context"].current_host


class HParams:
    """As programs had them from `tf.contrib.training`: attributes that are added and set."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __contains__(self, name: str) -> bool:
        return name in self.__dict__

    def add_hparam(self, name: str, value: Any) -> None:
        assert name not in self
        setattr(self, name, value)

    def set_hparam(self, name: str, value: Any) -> None:
        assert name in self
        setattr(self, name, value)


def test_a_rate_sees_the_step_before_it_is_counted(tmp_path: pathlib.Path) -> None:
    """Where tables alone are trained, too: steps 0 to 7 move a row by 0 + 1 + ... + 7 = 28."""
    column = tf.tpu.experimental.embedding_column(
        tf.feature_column.categorical_column_with_identity("a", 3),
        2,
        initializer=tf.zeros_initializer(),
        learning_rate_fn=lambda step: tf.cast(step, tf.float32),
    )

    def input_fn(params: Any) -> Any:
        ids = tf.sparse.from_dense(tf.ones([params["batch_size"], 1], tf.int64))
        return tf.data.Dataset.from_tensors({"a": ids}).repeat()

    def model_fn(features: Any, mode: str) -> Any:
        loss = -tf.reduce_sum(tf.keras.layers.DenseFeatures([column])(features))
        optimizer = tf.train.GradientDescentOptimizer(1.0)
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
        return estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    config = estimator.tpu.RunConfig(
        model_dir=str(tmp_path), tpu_config=estimator.tpu.TPUConfig(num_shards=1)
    )
    job = estimator.tpu.TPUEstimator(
        model_fn,
        config=config,
        train_batch_size=1,
        embedding_config_spec=estimator.tpu.experimental.EmbeddingConfigSpec(
            [column], parameters.StochasticGradientDescentParameters(1.0)
        ),
    )
    job.train(input_fn, max_steps=8)

    (name,) = [name for name in job.get_variable_names() if "a_embedding" in name]
    np.testing.assert_array_equal(job.get_variable_value(name), [[0, 0], [28, 28], [0, 0]])


def test_params_may_be_hparams(tmp_path: pathlib.Path) -> None:
    """Functions get a copy with the additions as attributes; the caller's object stays as it is."""
    params = HParams(use_tpu="mine", rate=0.1)
    seen: list[Any] = []

    def input_fn(params: Any) -> Any:
        return tf.data.Dataset.from_tensors(tf.ones([params.batch_size, 1])).repeat()

    def model_fn(features: Any, mode: str, params: Any) -> Any:
        seen.append((params.batch_size, params.use_tpu, params.rate))
        loss = tf.reduce_mean(features * tf.get_variable("weight", []))
        train_op = tf.train.get_global_step().assign_add(1)
        return estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    job = estimator.tpu.TPUEstimator(
        model_fn,
        config=estimator.tpu.RunConfig(model_dir=str(tmp_path)),
        params=params,
        train_batch_size=8,
    )
    job.train(input_fn, steps=1)

    assert seen == [(8, True, 0.1)]
    assert vars(params) == {"use_tpu": "mine", "rate": 0.1}


# --- Predictions --------------------------------------------------------------------------


@pytest.mark.parametrize("last", [1, 7])
def test_models_see_batches_of_one_size(last: int, tmp_path: pathlib.Path) -> None:
    """The last batch is filled up for the model, static shapes and all, and cut for the caller.

    Dense, sparse and ragged features alike, in nests of their own.
    """
    shapes: list[Any] = []

    def input_fn(params: Any) -> Any:
        size, rows = params["batch_size"], 2 * params["batch_size"] + last
        numbers = tf.range(rows)
        whole = {
            "dense": tf.cast(numbers, tf.float32),
            "nested": {"ragged": tf.RaggedTensor.from_row_lengths(numbers, tf.ones_like(numbers))},
            "sparse": tf.sparse.from_dense(tf.reshape(numbers + 1, [-1, 1])),
        }
        return tf.data.Dataset.from_tensor_slices(whole).batch(size)

    def model_fn(features: Any, mode: str, params: Any) -> Any:
        ragged = tf.cast(features["nested"]["ragged"].to_tensor(shape=[None, 1]), tf.float32)
        sparse = tf.cast(tf.sparse.to_dense(features["sparse"]), tf.float32)
        shapes.extend([features["dense"].shape.as_list(), features["sparse"].shape.as_list()[0]])
        size = params["batch_size"]
        # As models on TPUs are written: of the size that they were told.
        total = tf.reshape(features["dense"], [size, 1]) + tf.reshape(ragged, [size, 1])
        predictions = {"total": total + tf.reshape(sparse, [size, 1]), "all": tf.reshape(size, [])}
        return estimator.tpu.TPUEstimatorSpec(mode, predictions=predictions)

    job = estimator.tpu.TPUEstimator(
        model_fn,
        config=estimator.tpu.RunConfig(model_dir=str(tmp_path)),
        train_batch_size=8,
        predict_batch_size=8,
    )
    found = list(job.predict(input_fn, predict_keys=["total"]))

    assert shapes == [[8], 8]
    assert [float(each["total"][0]) for each in found] == [3.0 * n + 1 for n in range(16 + last)]
    assert [set(each) for each in found] == [{"total"}] * len(found)
    batches = list(job.predict(input_fn, yield_single_examples=False))
    assert [len(batch["total"]) for batch in batches] == [8, 8, last]
    with pytest.raises(errors.InvalidInput, match="yield_single_examples=False"):
        next(job.predict(input_fn))


def test_a_batch_that_is_too_large_fails(tmp_path: pathlib.Path) -> None:
    """An input_fn that takes no notice of its batch size is told so."""
    job = jobs.make(str(tmp_path))
    job.train(clicks.input_fn, steps=1)

    too_large = {"batch_size": jobs.BATCH + 1}
    with pytest.raises(errors.InvalidInput, match=f"`predict_batch_size`={jobs.BATCH}"):
        next(job.predict(lambda params: clicks.short_input_fn(too_large)))

    def of_any_size(params: Any) -> Any:
        return clicks.short_input_fn(too_large).unbatch().batch(jobs.BATCH + 1)

    with pytest.raises(tf.errors.InvalidArgumentError, match=f"`predict_batch_size`={jobs.BATCH}"):
        next(job.predict(of_any_size))


def test_embeddings_of_the_last_batch(tmp_path: pathlib.Path) -> None:
    """A sample is predicted the same whether its batch is full or not."""
    job = jobs.make(str(tmp_path))
    job.train(clicks.input_fn, steps=3)

    def few(params: Any) -> Any:
        return clicks.short_input_fn(params).take(2).unbatch().take(21).batch(jobs.BATCH)

    some = [float(sample["p"][0]) for sample in job.predict(few)]
    every = [float(sample["p"][0]) for sample in job.predict(clicks.short_input_fn)]
    assert len(some) == 21
    np.testing.assert_allclose(some, every[:21], rtol=1e-6)


# --- Hooks and scaffolds ------------------------------------------------------------------


class Counting(tf.train.SessionRunHook):
    """Writes down its calls."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self._name, self._calls = name, calls

    def begin(self) -> None:
        self._calls.append(f"{self._name} begins")

    def end(self, session: Any) -> None:
        self._calls.append(f"{self._name} ends")


@pytest.mark.parametrize("use_tpu", [True, False])
def test_every_mode_has_its_hooks(use_tpu: bool, tmp_path: pathlib.Path) -> None:
    """training_hooks, evaluation_hooks and prediction_hooks of the spec run in their modes."""
    calls: list[str] = []

    def around(inner: Any, features: Any, labels: Any, mode: str, params: Any) -> Any:
        return inner(features, labels, mode, params)._replace(
            training_hooks=(Counting("training", calls),),
            evaluation_hooks=(Counting("evaluation", calls),),
            prediction_hooks=(Counting("prediction", calls),),
        )

    job = wrapped(jobs.make(str(tmp_path), use_tpu=use_tpu), around)
    job.train(clicks.input_fn, steps=1, hooks=[Counting("caller", calls)])
    assert calls == ["caller begins", "training begins", "caller ends", "training ends"]
    calls.clear()
    job.evaluate(clicks.short_input_fn, hooks=[Counting("caller", calls)])
    assert calls == ["caller begins", "evaluation begins", "caller ends", "evaluation ends"]
    calls.clear()
    assert list(job.predict(clicks.short_input_fn, hooks=[Counting("caller", calls)]))
    assert calls == ["caller begins", "prediction begins", "caller ends", "prediction ends"]


def test_a_programs_own_saver_holds_the_tables(tmp_path: pathlib.Path) -> None:
    """`scaffold_fn` with `Saver(tf.global_variables())` saves and restores tables and slots."""

    def scaffold_fn() -> Any:
        return tf.train.Scaffold(saver=tf.train.Saver(tf.global_variables(), max_to_keep=3))

    def around(inner: Any, features: Any, labels: Any, mode: str, params: Any) -> Any:
        return inner(features, labels, mode, params)._replace(scaffold_fn=scaffold_fn)

    plain = jobs.make(str(tmp_path / "plain"))
    plain.train(clicks.input_fn, steps=4)
    start = jobs.continue_from(jobs.first_checkpoint(plain), str(tmp_path / "own"))
    for _ in range(2):
        own = wrapped(jobs.make(start), around)
        own.train(_from_step(own), steps=2)

    assert jobs.largest_difference(jobs.saved(plain), jobs.saved(own))[0] == 0.0
    assert own.evaluate(clicks.short_input_fn) == plain.evaluate(clicks.short_input_fn)


def _from_step(job: Any) -> Any:
    done = int(job.get_variable_value("global_step"))
    return lambda params: clicks.input_fn(params).skip(done)


def test_a_table_starts_from_a_checkpoint(tmp_path: pathlib.Path) -> None:
    """`tf.train.init_from_checkpoint` in `scaffold_fn` reaches a table by stock's name."""
    base = jobs.make(str(tmp_path / "base"))
    base.train(clicks.input_fn, steps=3)
    place = "dense_features/place_embedding/embedding_weights"

    def scaffold_fn() -> Any:
        tf.train.init_from_checkpoint(base.latest_checkpoint(), {"items": "items", place: place})
        return tf.train.Scaffold()

    def around(inner: Any, features: Any, labels: Any, mode: str, params: Any) -> Any:
        return inner(features, labels, mode, params)._replace(scaffold_fn=scaffold_fn)

    job = wrapped(jobs.make(str(tmp_path / "job")), around)
    job.train(clicks.input_fn, steps=1)

    trained, first = jobs.saved(base), jobs.saved(job, jobs.first_checkpoint(job))
    for name in ("items", place):
        np.testing.assert_array_equal(first[name], trained[name])
        assert np.all(first[f"{name}/Adagrad"] == np.float32(0.1))
    assert np.any(jobs.saved(job)["items"] != trained["items"])


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

    job = wrapped(jobs.make(str(tmp_path)), around)
    job.train(clicks.input_fn, steps=1)

    first, last = jobs.saved(job, jobs.first_checkpoint(job)), jobs.saved(job)
    for name in ("items", "dense/kernel"):
        shadow = f"{name}/ExponentialMovingAverage"
        np.testing.assert_allclose(
            last[shadow], (first[name] + last[name]) / 2, rtol=1e-6, err_msg=shadow
        )
        assert np.any(first[name] != last[name])


def test_a_hook_finds_a_table_and_a_slot(tmp_path: pathlib.Path) -> None:
    """By stock's names, with `part_0`; it reads what the checkpoint then holds."""
    values: dict[str, Any] = {}

    class Hook(tf.train.SessionRunHook):
        def begin(self) -> None:
            self._found = {
                name: tf.get_default_graph().get_tensor_by_name(
                    f"{name}/part_0/Read/ReadVariableOp:0"
                )
                for name in ("items", "items/Adagrad")
            }
            names = {variable.name for variable in tf.global_variables()}
            assert {"items/part_0:0", "items/Adagrad/part_0:0"} <= names

        def end(self, session: Any) -> None:
            values.update(session.run(self._found))

    job = jobs.make(str(tmp_path))
    job.train(clicks.input_fn, steps=2, hooks=[Hook()])

    for name, value in values.items():
        np.testing.assert_array_equal(value, job.get_variable_value(name), err_msg=name)
    assert set(values) == {"items", "items/Adagrad"}


# --- Warm start ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def source(tmp_path_factory: Any) -> Any:
    """A job that was trained with use_tpu=True."""
    job = jobs.make(str(tmp_path_factory.mktemp("source") / "job"))
    return job.train(clicks.input_fn, steps=4)


@pytest.mark.parametrize("use_tpu", [True, False])
def test_tables_are_warm_started(source: Any, use_tpu: bool, tmp_path: pathlib.Path) -> None:
    """From a directory or a SavedModel: tables and weights are taken over, slots start anew.

    A job without a TPU takes over the tables of one with a TPU.
    """
    exported = source.export_saved_model(tmp_path / "exported", clicks_served.receiver)
    trained = jobs.saved(source)
    for number, path in enumerate((source.model_dir, exported)):
        job = jobs.make(str(tmp_path / str(number)), use_tpu=use_tpu, warm_start_from=path)
        job.train(clicks.input_fn, steps=1)
        first = jobs.saved(job, jobs.first_checkpoint(job))
        for name in (*TABLES, "dense/kernel", "dense/bias"):
            np.testing.assert_array_equal(first[name], trained[name], err_msg=name)
        if use_tpu:
            assert np.all(first["items/Adagrad"] == np.float32(0.1))
        assert first["global_step"] == 0


def test_settings_reach_tables_and_slots(source: Any, tmp_path: pathlib.Path) -> None:
    """A pattern for one table, a list that names its slot, and a table of another name."""
    trained = jobs.saved(source)
    place = "dense_features/place_embedding/embedding_weights"

    def start(name: str, **settings: Any) -> dict[str, np.ndarray]:
        chosen = WarmStartSettings(source.latest_checkpoint(), **settings)
        job = jobs.make(str(tmp_path / name), warm_start_from=chosen)
        job.train(clicks.input_fn, steps=1)
        steps = min(int(path.name[11:-6]) for path in (tmp_path / name).glob("*.index"))
        return jobs.saved(job, f"{job.model_dir}/model.ckpt-{steps}")

    pattern = start("pattern", vars_to_warm_start="items")
    np.testing.assert_array_equal(pattern["items"], trained["items"])
    assert np.all(pattern["items/Adagrad"] == np.float32(0.1))
    assert np.any(pattern[place] != trained[place])

    listed = start("listed", vars_to_warm_start=["items"])
    np.testing.assert_array_equal(listed["items/Adagrad"], trained["items/Adagrad"])

    every = start("every", vars_to_warm_start=[".*"])
    assert every["global_step"] == 4  # a list reaches it too, as in stock
    for name in set(every) - {name for name in every if name.startswith("tpu_embedding_dummy")}:
        np.testing.assert_array_equal(every[name], trained[name], err_msg=name)

    vocabularies = {}
    for which, order in (("old", 1), ("new", -1)):
        vocabularies[which] = tmp_path / which
        vocabularies[which].write_text("".join(f"{n}\n" for n in range(clicks.ROWS)[::order]))
    moved = start(
        "moved",
        vars_to_warm_start=None,
        var_name_to_vocab_info={
            "items": tf.train.VocabInfo(
                new_vocab=str(vocabularies["new"]),
                new_vocab_size=clicks.ROWS,
                num_oov_buckets=0,
                old_vocab=str(vocabularies["old"]),
            )
        },
    )
    np.testing.assert_array_equal(moved["items"], trained["items"][::-1])
    with pytest.raises(ValueError, match="itms"):
        start("misspelt", var_name_to_prev_var_name={"itms": "items"})


# --- SIGTERM ------------------------------------------------------------------------------


def test_sigterm_saves_the_tables(tmp_path: pathlib.Path) -> None:
    """A training with pipelining that is stopped ends where one of as many steps ends."""
    options = {
        "spec_options": {"pipeline_execution_with_tensor_core": True},
        "tpu_options": {"iterations_per_loop": 1},
    }
    whole = jobs.make(str(tmp_path / "whole"), **options)
    whole.train(clicks.input_fn, steps=3)
    start = jobs.continue_from(jobs.first_checkpoint(whole), str(tmp_path / "stopped"))
    job = jobs.make(start, **options)
    calls: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda signum, frame: calls.append(signum))
    try:
        job.train(clicks.input_fn, steps=100, hooks=[Terminate(3)])
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
    """Returns what the functions and hooks of either side's job were called with, in order."""
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
    """With use_tpu=False: batch sizes, params and modes of every call, and the order of hooks."""
    theirs = calls_of_a_job(stock.ESTIMATOR, str(tmp_path / "stock" / "job"))
    ours = calls_of_a_job(estimator, str(tmp_path / "bridge" / "job"))

    assert theirs == ours
    assert len(ours) == 18
