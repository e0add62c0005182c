"""`train_and_evaluate` and exporters, compared with stock's if TensorFlow has them."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.conftest import HAS_STOCK
from compat_tests.programs import clicks_served, tiny
from compat_tests.support.base_jobs import run_signature, write_scalars
from compat_tests.support.legacy_specs import needs_stock
from compat_tests.support.tiers import quick
from estimator_bridge import errors, estimator
from estimator_bridge.legacy.spec import set_default_quirks
from estimator_bridge.runtime.loop import train_and_evaluate as module

if HAS_STOCK:
    from compat_tests.support import stock

# Nothing is exported in these tests: a recorder stands for `export_saved_model`.
Recorded = list[tuple[Any, ...]]


class RecordingEstimator:
    """What exporters need of an estimator; each export is a directory named by its number."""

    def __init__(self, model_dir: pathlib.Path) -> None:
        self.model_dir = str(model_dir)
        self.calls: Recorded = []

    def export_saved_model(self, directory: str, receiver_fn: Any, **settings: Any) -> str:
        path = os.path.join(directory, str(1_000_000_000 + len(self.calls)))
        os.makedirs(path)
        self.calls.append((receiver_fn, settings))
        return path


def receiver_fn() -> None:
    """Stands for a serving_input_receiver_fn."""


def make_job(namespace: Any, model_dir: pathlib.Path, every: int = 2) -> Any:
    run_options = {"save_checkpoints_steps": every, "keep_checkpoint_max": None}
    columns = [tiny.column()]
    return tiny.make(namespace, str(model_dir), columns, use_tpu=False, run_options=run_options)


def recording_exporter(base: Any, calls: Recorded) -> Any:
    class RecordingExporter(base):  # type: ignore[misc]
        name = "recorded"

        def export(self, estimator: Any, **given: Any) -> str:
            metrics = given["eval_result"]
            call = (
                os.path.relpath(given["export_path"], estimator.model_dir),
                os.path.basename(given["checkpoint_path"]),
                int(metrics["global_step"]),
                sorted(metrics),
                given["is_the_final_export"],
            )
            calls.append(call)
            return f"export {len(calls)}"

    return RecordingExporter()


def run(
    namespace: Any,
    model_dir: pathlib.Path,
    *,
    every: int = 2,
    max_steps: int | None = 5,
    throttle_secs: float = 0,
    input_fn: Callable[..., Any] = tiny.input_fn,
) -> tuple[Any, Recorded]:
    """Returns what `train_and_evaluate` returns, and the calls of an exporter."""
    calls: Recorded = []
    exporter = recording_exporter(namespace.Exporter, calls)
    results = namespace.train_and_evaluate(
        make_job(namespace, model_dir, every),
        namespace.TrainSpec(input_fn, max_steps=max_steps),
        namespace.EvalSpec(
            tiny.short_input_fn, steps=2, exporters=exporter, throttle_secs=throttle_secs
        ),
    )
    return results, calls


METRICS = ["global_step", "loss", "mean"]


def test_a_throttle_leaves_evaluations_out(tmp_path: pathlib.Path) -> None:
    _, calls = run(estimator, tmp_path, throttle_secs=3600)

    assert [call[2] for call in calls] == [2, 5]


def test_training_ends_with_its_input(tmp_path: pathlib.Path) -> None:
    """Without max_steps no export is the final one."""
    (metrics, _), calls = run(estimator, tmp_path, max_steps=None, input_fn=tiny.short_input_fn)

    assert metrics["global_step"] == 5
    assert [call[-1] for call in calls] == [False, False, False]


BESIDE: dict[str, dict[str, Any]] = {
    "plain": {},
    "throttled": {"throttle_secs": 3600},
    "every third step": {"every": 3, "max_steps": 6},
    "an input that ends": {"max_steps": None, "input_fn": tiny.short_input_fn},
}


@needs_stock
@pytest.mark.parametrize("case", quick(["plain"], BESIDE))
def test_it_does_what_stock_does(case: str, tmp_path: pathlib.Path) -> None:
    """From one checkpoint evaluations, exports, numbers and results are stock's, twice in a row."""
    make_job(stock.ESTIMATOR, tmp_path / "start", 10).train(tiny.input_fn, max_steps=1)
    came_to = []
    for name, namespace in (("stock", stock.ESTIMATOR), ("bridge", estimator)):
        shutil.copytree(tmp_path / "start", tmp_path / name)
        first = run(namespace, tmp_path / name, **BESIDE[case])
        came_to.append((first, run(namespace, tmp_path / name, **BESIDE[case])))

    assert came_to[0] == came_to[1]


def test_arguments_of_another_type_are_refused(tmp_path: pathlib.Path) -> None:
    job = make_job(estimator, tmp_path)
    train, evaluate = estimator.TrainSpec(tiny.input_fn), estimator.EvalSpec(tiny.input_fn)
    for arguments, message in (
        ((job, train, None), "`eval_spec` must have type `tf.estimator.EvalSpec`, got None"),
        ((job, evaluate, evaluate), "`train_spec` must have type .*TrainSpec`, got EvalSpec"),
        ((3, train, evaluate), "must have type `tf.estimator.Estimator`, got 3"),
    ):
        with pytest.raises(errors.WrongType, match=message):
            estimator.train_and_evaluate(*arguments)


def set_task(monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    """Sets TF_CONFIG to a cluster of one chief."""
    chief = "master" if task == "master" else "chief"
    config = {"cluster": {chief: ["b:1"]}, "task": {"type": task, "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))


def test_a_master_does_both(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `master` trains and evaluates, and returns the last results: stock leaves that undefined.

    So a program that uses what `train_and_evaluate` returns runs in a cluster, too.
    """
    set_task(monkeypatch, "master")
    results, calls = run(estimator, tmp_path)

    assert [call[2] for call in calls] == [2, 4, 5]
    metrics, exports = results
    assert metrics["global_step"] == 5
    assert exports == ["export 3"]


def test_a_chief_trains_and_an_evaluator_evaluates(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task of a cluster does its part; the evaluator stops at the last step.

    It waits for a new checkpoint, at least a second, and evaluates it.
    """
    set_task(monkeypatch, "evaluator")
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            set_task(monkeypatch, "chief")
            assert run(estimator, tmp_path) == (None, [])
            assert not (tmp_path / "eval").exists()

    monkeypatch.setattr(module, "_sleep", sleep)
    results, calls = run(estimator, tmp_path)
    assert results is None
    assert calls == [("export/recorded", "model.ckpt-5", 5, METRICS, True)]
    assert waited == [120, 1.0, 1.0]


def greater_auc(best_eval_result: Any, current_eval_result: Any) -> bool:
    return bool(current_eval_result["auc"] > best_eval_result["auc"])


ALL = [0, 1, 2, 3, 4]
EXPORTERS: dict[str, tuple[Callable[[Any], Any], list[int]]] = {
    # How it is made, and which of the evaluations below it exports.
    "latest": (lambda e: e.LatestExporter("x", receiver_fn, {"a": "b"}, True), ALL),
    "final": (lambda e: e.FinalExporter("x", receiver_fn), [4]),
    "best": (lambda e: e.BestExporter("x", receiver_fn), [0, 2, 4]),
    "best by another metric": (
        lambda e: e.BestExporter("x", receiver_fn, compare_fn=greater_auc, as_text=True),
        [0, 1],
    ),
    "two are kept": (lambda e: e.LatestExporter("x", receiver_fn, exports_to_keep=2), ALL),
    "all are kept": (lambda e: e.LatestExporter("x", receiver_fn, exports_to_keep=None), ALL),
    "one best is kept": (lambda e: e.BestExporter("x", receiver_fn, exports_to_keep=1), [0, 2, 4]),
}
LOSSES = [0.5, 0.6, 0.4, 0.4, 0.3]
AUCS = [0.7, 0.8, 0.8, 0.6, 0.5]


# More arguments of an export than the checkpoint, where they are not the defaults.
ASKED_FOR: dict[str, dict[str, Any]] = {
    "latest": {"assets_extra": {"a": "b"}, "as_text": True},
    "best by another metric": {"as_text": True},
}


@pytest.mark.parametrize("name", EXPORTERS)
def test_exporters_export_what_they_should(
    name: str, namespace: Any, tmp_path: pathlib.Path
) -> None:
    job = RecordingEstimator(tmp_path)
    make, wanted = EXPORTERS[name]
    exporter = make(namespace)
    path = os.path.join(tmp_path, "export", exporter.name)
    results = [
        exporter.export(job, path, f"model-{i}", {"loss": loss, "auc": auc}, i == 4)
        for i, (loss, auc) in enumerate(zip(LOSSES, AUCS, strict=True))
    ]
    kept = {"two are kept": 2, "one best is kept": 1}.get(name, 5)

    assert exporter.name == "x"
    assert [i for i, result in enumerate(results) if result] == wanted
    settings = {"assets_extra": None, "as_text": False, **ASKED_FOR.get(name, {})}
    assert job.calls == [
        (receiver_fn, {**settings, "checkpoint_path": f"model-{i}"}) for i in wanted
    ]
    names = [str(1_000_000_000 + i) for i in range(len(wanted))]
    assert [os.path.basename(result) for result in results if result] == names
    assert sorted(os.listdir(path)) == names[-kept:]


def exported_over_restarts(
    namespace: Any, model_dir: pathlib.Path, runs: Sequence[Sequence[float]], **options: Any
) -> list[int]:
    """Returns the steps that are exported, by a new exporter in each run, of evaluations by run.

    Args:
        options: of the exporter; `evaluated_in` is the folder of events, "eval" by default, and
            `job` another estimator than one that has no quirks.
    """
    folder = model_dir / options.pop("evaluated_in", "eval")
    tag = "auc" if "compare_fn" in options else "loss"
    step, exported = 0, []
    job = options.pop("job", None) or RecordingEstimator(model_dir)
    for results in runs:
        exporter = namespace.BestExporter("x", receiver_fn, **options)
        path = os.path.join(model_dir, "export", "x")
        for result in results:
            write_scalars(folder, {step: {tag: result}})
            metrics = {tag: np.float32(result), "global_step": np.int64(step)}
            if exporter.export(job, path, f"model-{step}", metrics, False) is not None:
                exported.append(step)
            step += 1
    return exported


# The results of the evaluations of each run, options, and what is exported of them: with
# "documented", and with "stock".
RESTARTS: dict[str, tuple[list[list[float]], dict[str, Any], list[int], list[int]]] = {
    "worse": ([[0.5, 0.2], [0.9, 0.8, 0.1]], {}, [0, 1, 4], [0, 1, 2, 3, 4]),
    "better": ([[0.5, 0.4], [0.3, 0.35, 0.2]], {}, [0, 1, 2, 4], [0, 1, 2, 4]),
    "equal": ([[0.5], [0.5, 0.5]], {}, [0], [0, 1]),
    "three runs": ([[0.5, 0.2], [0.9], [0.8, 0.15]], {}, [0, 1, 4], [0, 1, 2, 3, 4]),
    "another comparison": (
        [[0.5, 0.9], [0.6, 0.7, 0.95]],
        {"compare_fn": greater_auc},
        [0, 1, 4],
        [0, 1, 2, 3, 4],
    ),
    "one is kept": ([[0.2], [0.9, 0.1]], {"exports_to_keep": 1}, [0, 2], [0, 1, 2]),
    "an evaluation with a name": (
        [[0.2], [0.9, 0.1]],
        {"evaluated_in": "eval_x", "event_file_pattern": "eval_x/*.tfevents.*"},
        [0, 2],
        [0, 1, 2],
    ),
    "no events are read": ([[0.2], [0.9, 0.1]], {"event_file_pattern": None}, *[[0, 1, 2]] * 2),
}


@pytest.mark.parametrize("name", RESTARTS)
def test_the_best_is_kept_over_restarts(
    name: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With "stock" a restart exports a worse model, and says so; with "documented" it does not."""
    runs, options, documented, as_stock = RESTARTS[name]
    for kind, expected in (("documented", documented), ("stock", as_stock)):
        set_default_quirks(kind)
        caplog.clear()
        assert expected == exported_over_restarts(estimator, tmp_path / kind, runs, **options)
        told = [line for line in caplog.messages if "an earlier run evaluated" in line]
        assert bool(told) == (documented != expected)


@needs_stock
@pytest.mark.parametrize("name", RESTARTS)
def test_stock_exports_what_is_worse_after_a_restart(name: str, tmp_path: pathlib.Path) -> None:
    """Stock's exporter exports what the bridge's does with quirks="stock"."""
    runs, options, _, expected = RESTARTS[name]
    assert exported_over_restarts(stock.ESTIMATOR, tmp_path, runs, **options) == expected


@pytest.mark.parametrize("said_by", ["argument", "spec"])
def test_the_estimators_quirks_go_before_those_of_the_process(
    said_by: str, tmp_path: pathlib.Path
) -> None:
    """A TPUEstimator has those of its argument, or else of its spec."""
    runs, _, documented, as_stock = RESTARTS["worse"]
    for process, of_job, expected in (
        ("stock", "documented", documented),
        ("documented", "stock", as_stock),
    ):
        set_default_quirks(process)
        spec = estimator.tpu.experimental.EmbeddingConfigSpec(
            feature_columns=[tiny.column()],
            optimization_parameters=tiny.sgd(0.1),
            quirks=of_job if said_by == "spec" else None,
        )
        options = {"quirks": of_job} if said_by == "argument" else {}
        folder = tmp_path / process
        job = tiny.make(estimator, str(folder), (), use_tpu=True, spec=spec, **options)
        job.export_saved_model = RecordingEstimator(folder).export_saved_model
        assert exported_over_restarts(estimator, folder, runs, job=job) == expected


def test_events_that_are_elsewhere_are_named(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where no event file fits the pattern a line says so: evaluations with a name have others."""
    exported_over_restarts(estimator, tmp_path, [[0.2], [0.9]], evaluated_in="eval_valid")
    told = [line for line in caplog.messages if "event_file_pattern" in line]
    assert len(told) == 2
    assert "'x': there is no file eval/*.tfevents.*" in told[0]


@pytest.mark.parametrize("max_steps", [pytest.param(None, marks=pytest.mark.full), 6, 5])
def test_a_final_export_that_never_comes_is_told(
    max_steps: int | None, namespace: Any, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A training that ends before max_steps has no final export; the bridge says so."""
    exporter = namespace.FinalExporter("last", receiver_fn)
    job = make_job(namespace, tmp_path)
    job.export_saved_model = lambda *_, **__: "exported"
    _, exports = namespace.train_and_evaluate(
        job,
        namespace.TrainSpec(lambda params: tiny.input_fn(params).take(5), max_steps=max_steps),
        namespace.EvalSpec(tiny.short_input_fn, steps=2, exporters=exporter, throttle_secs=0),
    )
    told = [line for line in caplog.messages if "nothing is exported" in line]

    assert list(exports) == (["exported"] if max_steps == 5 else [None])
    assert len(told) == (max_steps != 5 and namespace is estimator)
    assert all("training ended at step 5" in line for line in told)


class ReadingAtEnd(tf.train.SessionRunHook):
    """Asks for another batch at the end, as a LoggingTensorHook with at_end=True does."""

    def begin(self) -> None:
        ops = tf.get_default_graph().get_operations()
        self._batch = next(op for op in ops if op.type == "IteratorGetNext").outputs[0]

    def end(self, session: Any) -> None:
        session.run(self._batch)


def test_a_hook_of_an_evaluation_that_ends_the_training_is_told(
    namespace: Any, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The session takes the error for the end of the training's input, on both sides.

    A warning of the bridge has the cause and the way out; none says that max_steps is wrong.
    """
    job = make_job(namespace, tmp_path)
    exporter = namespace.FinalExporter("last", receiver_fn)
    evaluation = {"steps": None, "hooks": [ReadingAtEnd()], "exporters": exporter}
    namespace.train_and_evaluate(
        job,
        namespace.TrainSpec(tiny.input_fn, max_steps=5),
        namespace.EvalSpec(tiny.short_input_fn, throttle_secs=0, **evaluation),
    )

    assert int(job.get_variable_value("global_step")) == 2
    if namespace is estimator:
        (told,) = (line for line in caplog.messages if "OutOfRangeError" in line)
        assert "The evaluation of step 2 raises" in told
        assert "Leave at_end out" in told
        assert not [line for line in caplog.messages if "nothing is exported" in line]


@pytest.mark.full
def test_a_job_that_is_restarted_keeps_its_best_export(tmp_path: pathlib.Path) -> None:
    """Its last model has a greater loss than one of the first run, and is not exported."""
    losses = {2: 0.5, 4: 0.1, 6: 0.9, 8: 0.8}

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        step = tf.train.get_or_create_global_step()
        tf.get_variable("weight", [])
        values = [losses[at] for at in sorted(losses)]
        loss = tf.gather(values, tf.maximum(tf.cast(step, tf.int32) // 2 - 1, 0))
        output = {"step": tf.fill([tf.shape(features["x"])[0]], step)}
        return estimator.EstimatorSpec(
            mode, predictions=output, loss=loss, train_op=tf.assign_add(step, 1)
        )

    def data() -> Any:
        return tf.data.Dataset.from_tensors(({"x": tf.ones([1, 1])}, tf.ones([1]))).repeat()

    def receiver() -> Any:
        x = tf.placeholder(tf.float32, [None, 1], "x")
        return clicks_served.Receiver({"x": x}, {"x": x})

    for last_step in (4, 8):
        job = estimator.Estimator(
            model_fn,
            config=estimator.RunConfig(model_dir=str(tmp_path), save_checkpoints_steps=2),
        )
        exporter = estimator.BestExporter("best", receiver)
        estimator.train_and_evaluate(
            job,
            estimator.TrainSpec(data, max_steps=last_step),
            estimator.EvalSpec(data, steps=1, exporters=exporter, throttle_secs=0),
        )
    steps = [
        int(run_signature(os.fsencode(path), "serving_default", {"x": [[1.0]]})["step"][0])
        for path in sorted((tmp_path / "export" / "best").iterdir())
    ]
    assert steps == [2, 4]


@pytest.mark.parametrize(
    "kind, evaluated", [("documented", {}), ("stock", {}), ("stock", {"loss": 0.5})]
)
def test_a_model_without_metrics_is_exported(
    kind: str, evaluated: dict[str, float], tmp_path: pathlib.Path
) -> None:
    """As in stock, where a restarted job has nothing to compare it with."""
    set_default_quirks(kind)
    write_scalars(tmp_path / "eval", {0: evaluated})
    place = tmp_path / "export"
    (place / "1").mkdir(parents=True)
    exporter = estimator.BestExporter("x", receiver_fn)

    job = RecordingEstimator(tmp_path)
    assert exporter.export(job, str(place), "", None, is_the_final_export=False)


def test_a_result_without_a_loss_is_named(tmp_path: pathlib.Path) -> None:
    """The default comparison says which result lacks the loss."""
    exporter = estimator.BestExporter("x", receiver_fn)
    job = RecordingEstimator(tmp_path)
    path = str(tmp_path / "x")
    exporter.export(job, path, "model-0", {"loss": 1.0}, False)

    with pytest.raises(errors.InvalidInput, match=r"`current_eval_result` has no 'loss'"):
        exporter.export(job, path, "model-1", {"auc": 1.0}, False)
