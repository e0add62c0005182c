"""Hooks, warm starts and SIGTERM of a TPUEstimator with tables."""

from __future__ import annotations

import os
import pathlib
import signal
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.conftest import HAS_STOCK
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


# --- Hooks and scaffolds ------------------------------------------------------------------


@pytest.fixture(scope="module")
def source(tmp_path_factory: Any) -> Any:
    """Returns a job that was trained with use_tpu=True."""
    return make(tmp_path_factory.mktemp("source") / "job").train(batches, steps=4)


MODES = ("training", "evaluation", "prediction")


class Counting(tf.train.SessionRunHook):
    def __init__(self, name: str, calls: list[str]) -> None:
        self._name, self._calls = name, calls

    def begin(self) -> None:
        self._calls.append(f"{self._name} begins")

    def end(self, session: Any) -> None:
        self._calls.append(f"{self._name} ends")


def test_every_mode_has_its_hooks(tmp_path: pathlib.Path) -> None:
    """With use_tpu=True; `test_functions_are_told_what_stock_tells_them` has the other setting."""
    calls: list[str] = []
    hooks = {f"{mode}_hooks": [Counting(mode, calls)] for mode in MODES}
    job = make(tmp_path, model_options=lambda *_: hooks)
    job.train(batches, steps=1, hooks=[Counting("caller", calls)])
    assert calls == ["caller begins", "training begins", "caller ends", "training ends"]
    calls.clear()
    job.evaluate(two_batches, hooks=[Counting("caller", calls)])
    assert calls == ["caller begins", "evaluation begins", "caller ends", "evaluation ends"]
    calls.clear()
    assert list(job.predict(two_batches, hooks=[Counting("caller", calls)]))
    assert calls == ["caller begins", "prediction begins", "caller ends", "prediction ends"]


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
    """A warm start from a directory or a SavedModel restores tables and weights, and no slots."""
    path = source.model_dir
    if is_exported:
        path = source.export_saved_model(tmp_path / "exported", lambda: tiny.receiver("ab"))
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

    old, new = tmp_path / "old", tmp_path / "new"
    for path, order in ((old, 1), (new, -1)):
        path.write_text("".join(f"{n}\n" for n in range(tiny.ROWS)[::order]))
    info = {TABLE: tf.train.VocabInfo(str(new), tiny.ROWS, 0, str(old))}
    moved = start("moved", vars_to_warm_start=None, var_name_to_vocab_info=info)
    np.testing.assert_array_equal(moved[TABLE], trained[TABLE][::-1])
    with pytest.raises(ValueError, match="itms"):
        start("misspelt", var_name_to_prev_var_name={"itms": TABLE})


# --- SIGTERM ------------------------------------------------------------------------------


def test_sigterm_saves_the_tables(tmp_path: pathlib.Path) -> None:
    """SIGTERM reaches the program's handler once the step is saved, one that is pipelined, too."""
    options = {
        "spec_options": {"pipeline_execution_with_tensor_core": True},
        "tpu_options": {"iterations_per_loop": 1},
    }
    whole, job = (make(tmp_path / name, **options) for name in ("whole", "stopped"))
    whole.train(batches, steps=3)
    calls: list[Any] = []

    def mine(signum: int, frame: Any) -> None:
        calls.append((signum, job.latest_checkpoint()))

    before = signal.signal(signal.SIGTERM, mine)
    try:
        job.train(batches, steps=100, hooks=[Terminate(3)])
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)

    assert calls == [(signal.SIGTERM, f"{job.model_dir}/model.ckpt-3")]
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
        hooks = {f"{mode}_hooks": (Counting(mode, seen),) for mode in MODES}
        return inner(features, labels, mode, params)._replace(**hooks)

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
