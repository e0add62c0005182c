"""`Estimator`, the base class: what a job of it does, keeps, reports and exports."""

from __future__ import annotations

import functools
import glob
import logging
import os
import pathlib
import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.conftest import HAS_STOCK
from compat_tests.programs import houses, jobs
from estimator_bridge import errors, estimator
from estimator_bridge.legacy.warm_start import WarmStartSettings
from estimator_bridge.runtime.estimator import Estimator
from tf2_engine import tf_compat

OUTPUTS = tf_compat.export_output_classes()
STEPS = 5

if HAS_STOCK:
    from compat_tests import stock


def make(tmp_path: pathlib.Path, kind: Any = Estimator, name: str = "job", **options: Any) -> Any:
    """Returns an Estimator, ours unless `kind` is stock's, over the house program."""
    namespace = estimator if kind is Estimator else stock.ESTIMATOR
    vocabulary = houses.write_vocabulary(tmp_path / "streets.txt")
    outputs = options.pop("outputs", None)
    prefix = options.pop("prefix", "")
    config = houses.run_config(namespace, tmp_path / name, **options.pop("config", {}))
    model_fn = houses.make_model_fn(namespace, vocabulary, outputs, prefix)
    return kind(model_fn, config=config, **options)


def several_outputs(predictions: dict[str, Any]) -> dict[str, Any]:
    """Returns an output of each kind."""
    price = predictions["price"]
    return {
        "serving_default": OUTPUTS["PredictOutput"](predictions),
        "value": OUTPUTS["RegressionOutput"](price),
        "classes": OUTPUTS["ClassificationOutput"](
            scores=price, classes=tf.as_string(tf.cast(price, tf.int32))
        ),
    }


def run_signature(path: bytes, name: str, feeds: dict[str, Any]) -> dict[str, Any]:
    """Runs a signature of a SavedModel in a graph of its own."""
    with tf.Graph().as_default(), tf.Session() as session:
        signatures = tf.saved_model.loader.load(session, ["serve"], os.fsdecode(path)).signature_def
        inputs, outputs = signatures[name].inputs, signatures[name].outputs
        return session.run(
            {key: info.name for key, info in outputs.items()},
            {inputs[key].name: value for key, value in feeds.items()},
        )


def test_a_job_trains_evaluates_and_predicts(tmp_path: pathlib.Path) -> None:
    """Training lowers the loss, from input_fns without arguments, and predictions are in order."""
    job = make(tmp_path)
    before = job.evaluate(lambda: houses.data(10))
    job.train(houses.data, steps=200)
    after = job.evaluate(lambda: houses.data(10), name="again")

    assert before["global_step"] == 0
    assert set(after) == {"error", "loss", "global_step"}
    assert after["global_step"] == 200
    assert after["loss"] < before["loss"] / 2
    singles = list(job.predict(lambda: houses.data(3)))
    batches = list(job.predict(lambda: houses.data(3), yield_single_examples=False))
    assert len(singles) == 3 * houses.BATCH
    np.testing.assert_array_equal(
        [each["price"] for each in singles], np.concatenate([each["price"] for each in batches])
    )
    assert job.eval_dir("again") == os.path.join(job.model_dir, "eval_again")
    assert job.get_variable_value("hidden").shape == (5, 4)
    assert {"hidden", "output", "global_step"} <= set(job.get_variable_names())


def test_predict_keys_choose(tmp_path: pathlib.Path) -> None:
    """Only the predictions that are asked for come; none of them is an error that lists them."""
    job = make(tmp_path)

    (sample, *_) = job.predict(lambda: houses.data(1), predict_keys=["double"])
    assert set(sample) == {"double"}
    with pytest.raises(errors.InvalidInput, match=r"double.*price"):
        next(job.predict(lambda: houses.data(1), predict_keys=["cost"]))


def test_functions_take_what_they_like(tmp_path: pathlib.Path) -> None:
    """Input_fn and model_fn may take any of their arguments, in any order, also as partials."""
    seen: dict[str, Any] = {}

    def input_fn(config: Any, mode: str, params: Any, size: int) -> Any:
        seen.update(mode=mode, rate=params["rate"], dir=config.model_dir, size=size)
        return tf.ones([2, 1])  # features alone, as tensors

    def model_fn(params: Any, mode: str, features: Any) -> Any:
        weight = tf.get_variable("weight", [])
        loss = tf.reduce_mean(tf.square(features * weight - params["rate"]))
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
        return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    job = Estimator(model_fn, str(tmp_path), params={"rate": 3.0})
    job.train(functools.partial(input_fn, size=7), steps=20)

    assert seen == {"mode": "train", "rate": 3.0, "dir": str(tmp_path), "size": 7}
    assert job.params == {"rate": 3.0}
    assert job.latest_checkpoint().endswith("model.ckpt-20")


@pytest.mark.parametrize(
    ("model_fn", "options", "message"),
    [
        (None, {}, "model_fn"),
        (lambda labels: None, {}, "features"),
        (lambda features, labels: None, {"params": {}}, "params"),
        (lambda features, label: None, {}, "label"),
        (lambda features: None, {"config": 3}, "RunConfig"),
        (lambda features: None, {"warm_start_from": 3}, "warm_start_from"),
    ],
)
def test_wrong_arguments_are_refused(model_fn: Any, options: Any, message: str) -> None:
    """What stock's constructor refuses is refused with the name of the argument."""
    with pytest.raises(ValueError, match=message):
        Estimator(model_fn, **options)
    if HAS_STOCK:
        with pytest.raises(ValueError):  # noqa: PT011 - whatever its words
            stock.ESTIMATOR.Estimator(model_fn, **options)


def test_calls_are_checked(tmp_path: pathlib.Path) -> None:
    """Hooks, listeners and steps of the wrong kind are refused, and so is a taken metric name."""
    job = make(tmp_path)

    with pytest.raises(errors.WrongType, match="SessionRunHook"):
        job.train(houses.data, steps=1, hooks=["hook"])
    with pytest.raises(errors.WrongType, match="CheckpointSaverListener"):
        job.train(houses.data, steps=1, saving_listeners=["listener"])
    with pytest.raises(errors.InvalidInput, match="not both"):
        job.train(houses.data, steps=1, max_steps=1)
    with pytest.raises(errors.InvalidInput, match="steps"):
        job.evaluate(houses.data, steps=0)
    with pytest.raises(errors.NotTrained, match="no checkpoint"):
        job.get_variable_names()

    def with_loss(features: Any, labels: Any, mode: str) -> Any:
        loss = tf.reduce_mean(labels)
        return estimator.EstimatorSpec(
            mode, loss=loss, eval_metric_ops={"loss": tf.metrics.mean(loss)}
        )

    with pytest.raises(errors.InvalidInput, match="'loss'"):
        Estimator(with_loss, str(tmp_path / "taken")).evaluate(lambda: houses.data(1))


def test_a_scaffold_keeps_its_own_local_init_op(tmp_path: pathlib.Path) -> None:
    """In evaluation it runs beside the initialisation of metrics."""

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        start = tf.get_variable(
            "start", [], initializer=tf.zeros_initializer(), collections=["others"]
        )
        return estimator.EstimatorSpec(
            mode,
            loss=tf.reduce_mean(labels),
            eval_metric_ops={"start": tf.metrics.mean(start.read_value())},
            scaffold=tf.train.Scaffold(local_init_op=start.assign(5.0)),
        )

    assert Estimator(model_fn, str(tmp_path)).evaluate(lambda: houses.data(2))["start"] == 5.0


def test_nan_ends_a_training(tmp_path: pathlib.Path) -> None:
    """A loss that is NaN raises NanLossDuringTrainingError."""

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        weight = tf.get_variable("weight", [])
        loss = weight * np.nan
        train_op = tf.train.get_global_step().assign_add(1)
        return estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)

    with pytest.raises(tf.train.NanLossDuringTrainingError):
        Estimator(model_fn, str(tmp_path)).train(houses.data, steps=2)


# --- SIGTERM ------------------------------------------------------------------------------


class Terminate(tf.train.SessionRunHook):
    """Sends SIGTERM to this process in a step."""

    def __init__(self, step: int) -> None:
        self._left = step

    def before_run(self, run_context: Any) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGTERM)


def test_sigterm_stops_with_a_checkpoint(tmp_path: pathlib.Path) -> None:
    """The step that runs is finished and saved; only then the handler from before is called."""
    job = make(tmp_path)
    calls: list[Any] = []

    def mine(signum: int, frame: Any) -> None:
        calls.append((signum, job.latest_checkpoint()))

    before = signal.signal(signal.SIGTERM, mine)
    try:
        job.train(houses.data, steps=100, hooks=[Terminate(3)])
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)

    assert calls == [(signal.SIGTERM, os.path.join(job.model_dir, "model.ckpt-3"))]


def test_an_error_puts_the_handler_back(tmp_path: pathlib.Path) -> None:
    """Also where the training fails."""

    def fail() -> Any:
        raise KeyError("no data")

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyError, match="no data"):
        make(tmp_path).train(fail, steps=1)
    assert signal.getsignal(signal.SIGTERM) is before


def test_threads_train_without_a_handler(tmp_path: pathlib.Path) -> None:
    """Only the main thread may have handlers; a training in another one goes without."""
    job = make(tmp_path)
    thread = threading.Thread(target=lambda: job.train(houses.data, steps=2))
    thread.start()
    thread.join()

    assert job.latest_checkpoint().endswith("model.ckpt-2")


def test_sigterm_ends_the_process_after_the_checkpoint(tmp_path: pathlib.Path) -> None:
    """A process without a handler of its own dies of the signal, but with its steps saved."""
    program = (
        "import sys, pathlib\n"
        "from compat_tests import test_base_estimator as tests\n"
        "from compat_tests.programs import houses\n"
        "job = tests.make(pathlib.Path(sys.argv[1]))\n"
        "job.train(houses.data, steps=100, hooks=[tests.Terminate(4)])\n"
        "print('went on')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_USE_LEGACY_KERAS": "1"},
    )

    assert done.returncode == -signal.SIGTERM, done.stderr
    assert "went on" not in done.stdout
    assert make(tmp_path).latest_checkpoint().endswith("model.ckpt-4")


# --- Export -------------------------------------------------------------------------------


def test_exported_predictions_are_those_of_predict(tmp_path: pathlib.Path) -> None:
    """Serialised or parsed, a sample gets the prediction that `predict` makes of it."""
    job = make(tmp_path, outputs=several_outputs)
    job.train(houses.data, steps=STEPS)
    expected = [sample["price"] for sample in job.predict(lambda: houses.data(2))]

    path = job.export_saved_model(str(tmp_path / "exported"), houses.serving_receiver)

    assert isinstance(path, bytes)
    assert os.path.basename(path).isdigit()
    assert os.listdir(tmp_path / "exported") == [os.fsdecode(os.path.basename(path))]
    serialized, features = houses.examples(2)
    served = run_signature(path, "serving_default", {"examples": serialized})
    parsed = run_signature(path, "parsed:serving_default", features)
    value = run_signature(path, "value", {"inputs": serialized})
    np.testing.assert_array_equal(served["price"], expected)
    np.testing.assert_array_equal(parsed["price"], expected)
    np.testing.assert_array_equal(value["outputs"], expected)


def test_an_export_needs_only_tensorflow(tmp_path: pathlib.Path) -> None:
    """A fresh process that imports TensorFlow alone serves the model, after its sources are gone.

    The vocabulary file travels as an asset.
    """
    job = make(tmp_path)
    job.train(houses.data, steps=STEPS)
    expected = [float(sample["price"][0]) for sample in job.predict(lambda: houses.data(1))]
    path = os.fsdecode(job.export_saved_model(tmp_path / "exported", houses.serving_receiver))
    os.remove(tmp_path / "streets.txt")
    serialized, _ = houses.examples(1)
    (tmp_path / "examples").write_bytes(b"".join(len(s).to_bytes(4, "big") + s for s in serialized))
    program = (
        "import sys, tensorflow as tf\n"
        "data, examples = open(sys.argv[2], 'rb').read(), []\n"
        "while data:\n"
        "    size = int.from_bytes(data[:4], 'big')\n"
        "    examples.append(data[4:4 + size]); data = data[4 + size:]\n"
        "serve = tf.saved_model.load(sys.argv[1]).signatures['serving_default']\n"
        "print(serve(examples=tf.constant(examples))['price'].numpy().ravel().tolist())\n"
        "ours = ('tf2_engine', 'estimator_bridge')\n"
        "assert not any(name.startswith(ours) for name in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, path, str(tmp_path / "examples")],
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    assert os.listdir(os.path.join(path, "assets")) == ["streets.txt"]
    np.testing.assert_array_equal(np.float32(eval(done.stdout)), np.float32(expected))


def test_all_modes_are_exported_with_one_set_of_variables(tmp_path: pathlib.Path) -> None:
    """Each mode is a graph with its own tag and signature; the training graph can go on."""
    job = make(tmp_path)
    job.train(houses.data, steps=STEPS)
    path = job.experimental_export_all_saved_models(
        str(tmp_path / "exported"),
        {
            "train": houses.supervised_receiver,
            "eval": houses.supervised_receiver,
            "infer": houses.serving_receiver,
        },
    )

    feeds = {"area": [[0.5, 0.5]], "street": ["oak"], "price": [[1.0]]}
    for tag, signature in (("train", "train"), ("eval", "eval")):
        with tf.Graph().as_default() as graph, tf.Session() as session:
            loaded = tf.saved_model.loader.load(session, [tag], os.fsdecode(path))
            info = loaded.signature_def[signature]
            fed = {info.inputs[key].name: value for key, value in feeds.items()}
            assert {"loss", "predictions/price"} <= set(info.outputs)
            before = session.run(info.outputs["loss"].name, fed)
            if tag == "train":
                (train_op,) = graph.get_collection("saved_model_train_op")
                session.run(train_op, fed)
                assert session.run(info.outputs["loss"].name, fed) < before
    assert set(run_signature(path, "serving_default", {"examples": houses.examples(1)[0]})) == {
        "price",
        "double",
    }


def test_extra_assets_text_and_one_mode(tmp_path: pathlib.Path) -> None:
    """Files are added where they are asked for, the graph may be text, and one mode be chosen."""
    job = make(tmp_path)
    job.train(houses.data, steps=1)
    (tmp_path / "note.txt").write_text("a note")
    path = pathlib.Path(
        os.fsdecode(
            job.export_saved_model(
                str(tmp_path / "exported"),
                houses.supervised_receiver,
                assets_extra={"notes/first.txt": str(tmp_path / "note.txt")},
                as_text=True,
                checkpoint_path=jobs.first_checkpoint(job),
                experimental_mode="eval",
            )
        )
    )

    assert (path / "assets.extra/notes/first.txt").read_text() == "a note"
    assert 'tags: "eval"' in (path / "saved_model.pbtxt").read_text()
    reader = tf.train.load_checkpoint(str(path / "variables/variables"))
    assert reader.get_tensor("global_step") == 0


def test_a_failed_export_leaves_nothing(tmp_path: pathlib.Path) -> None:
    """What cannot be exported is told, and no part of a directory stays behind."""
    base = tmp_path / "exported"
    job = make(tmp_path)
    with pytest.raises(errors.NotTrained, match="no checkpoint"):
        job.export_saved_model(str(base), houses.serving_receiver)
    job.train(houses.data, steps=1)
    other = make(tmp_path, prefix="renamed")
    with pytest.raises(errors.InvalidInput, match="renamed/"):
        other.export_saved_model(str(base), houses.serving_receiver)
    with pytest.raises(errors.InvalidInput, match="serving_input_receiver_fn"):
        job.export_saved_model(str(base), None)
    with pytest.raises(errors.InvalidInput, match="infer"):
        job.experimental_export_all_saved_models(str(base), {"infer": None})

    def fail() -> Any:
        raise KeyError("no tensors")

    with pytest.raises(KeyError, match="no tensors"):
        job.export_saved_model(str(base), fail)
    assert not base.exists() or os.listdir(base) == []


def test_exports_of_one_second_get_their_own_directories(tmp_path: pathlib.Path) -> None:
    """Two exports, one right after the other, have different names in ascending order."""
    job = make(tmp_path)
    job.train(houses.data, steps=1)
    first, second = (
        int(os.path.basename(job.export_saved_model(tmp_path / "e", houses.serving_receiver)))
        for _ in range(2)
    )
    assert second > first


# --- Warm start ---------------------------------------------------------------------------


def started(job: Any) -> dict[str, np.ndarray]:
    """Returns what a job's variables start with."""
    job.train(houses.data, steps=1)
    return jobs.saved(job, jobs.first_checkpoint(job))


@pytest.fixture(scope="module")
def source(tmp_path_factory: Any) -> Any:
    """A job that was trained, and its folder."""
    folder = tmp_path_factory.mktemp("source")
    return make(folder).train(houses.data, steps=STEPS), folder


EMBEDDING = "input_layer/street_embedding/embedding_weights"


def test_a_path_warm_starts_trainable_variables(source: Any, tmp_path: pathlib.Path) -> None:
    """A checkpoint, its directory or a SavedModel: weights are taken over, all else starts anew."""
    base, _ = source
    exported = base.export_saved_model(str(tmp_path / "exported"), houses.serving_receiver)
    trained = jobs.saved(base)
    for number, path in enumerate((base.latest_checkpoint(), base.model_dir, exported)):
        values = started(make(tmp_path, name=str(number), warm_start_from=path))
        for name in ("hidden", "output", EMBEDDING):
            np.testing.assert_array_equal(values[name], trained[name], err_msg=name)
        assert np.all(values["hidden/Adagrad"] == np.float32(0.1))
        assert values["global_step"] == 0


def test_settings_choose_what_is_warm_started(source: Any, tmp_path: pathlib.Path) -> None:
    """A pattern, a list that reaches slots, other names, and a vocabulary that has changed."""
    base, _ = source
    trained = jobs.saved(base)
    streets = tmp_path / "old.txt"
    streets.write_text("fir\nash\noak\nelm\n")  # the checkpoint's rows, were they of this file

    def start(name: str, prefix: str = "", **settings: Any) -> dict[str, np.ndarray]:
        chosen = WarmStartSettings(base.model_dir, **settings)
        return started(make(tmp_path, name=name, prefix=prefix, warm_start_from=chosen))

    pattern = start("pattern", vars_to_warm_start="hid")
    np.testing.assert_array_equal(pattern["hidden"], trained["hidden"])
    assert np.any(pattern["output"] != trained["output"])

    listed = start("listed", vars_to_warm_start=["hidden"])
    np.testing.assert_array_equal(listed["hidden/Adagrad"], trained["hidden/Adagrad"])

    renamed = start(
        "renamed",
        "new",
        vars_to_warm_start="new/(hidden|output)",
        var_name_to_prev_var_name={"new/hidden": "hidden", "new/output": "output"},
    )
    np.testing.assert_array_equal(renamed["new/output"], trained["output"])

    vocabulary = tf.train.VocabInfo(
        new_vocab=houses.write_vocabulary(tmp_path / "streets.txt"),
        new_vocab_size=4,
        num_oov_buckets=1,
        old_vocab=str(streets),
        backup_initializer=tf.ones_initializer(),
    )
    moved = start("moved", vars_to_warm_start=None, var_name_to_vocab_info={EMBEDDING: vocabulary})
    np.testing.assert_array_equal(moved[EMBEDDING][:4], trained[EMBEDDING][3::-1])
    np.testing.assert_array_equal(moved[EMBEDDING][4], np.ones(3, np.float32))
    assert np.any(moved["hidden"] != trained["hidden"])


def test_evaluation_prediction_and_export_are_warm_started(
    source: Any, tmp_path: pathlib.Path
) -> None:
    """Without a checkpoint of its own a job evaluates, predicts and exports the other's values."""
    base, _ = source
    job = make(tmp_path, warm_start_from=base.model_dir)

    expected = base.evaluate(lambda: houses.data(2))
    assert job.evaluate(lambda: houses.data(2))["loss"] == expected["loss"]
    predicted = [sample["price"] for sample in base.predict(lambda: houses.data(1))]
    np.testing.assert_array_equal(
        [sample["price"] for sample in job.predict(lambda: houses.data(1))], predicted
    )
    path = job.export_saved_model(str(tmp_path / "exported"), houses.serving_receiver)
    served = run_signature(path, "serving_default", {"examples": houses.examples(1)[0]})
    np.testing.assert_array_equal(served["price"], predicted)


def test_a_checkpoint_of_its_own_comes_first(source: Any, tmp_path: pathlib.Path) -> None:
    """A job that was trained goes on, and is not warm-started again."""
    base, _ = source
    make(tmp_path).train(houses.data, steps=2)
    own = jobs.saved(make(tmp_path))
    job = make(tmp_path, warm_start_from=base.model_dir)

    job.train(houses.data, steps=1)
    kept = jobs.saved(job, os.path.join(job.model_dir, "model.ckpt-2"))
    assert jobs.largest_difference(own, kept)[0] == 0.0
    assert jobs.saved(job)["global_step"] == 3


# --- Beside stock -------------------------------------------------------------------------


def signatures(path: bytes, tag: str = "serve") -> dict[str, Any]:
    """Returns method, inputs and outputs (tensor name, type, shape) of each signature."""
    with tf.Graph().as_default(), tf.Session() as session:
        loaded = tf.saved_model.loader.load(session, [tag], os.fsdecode(path)).signature_def

    def read(infos: Any) -> dict[str, Any]:
        return {
            key: (info.name, info.dtype, [dim.size for dim in info.tensor_shape.dim])
            for key, info in infos.items()
        }

    return {
        name: (each.method_name, read(each.inputs), read(each.outputs))
        for name, each in loaded.items()
        if not name.startswith("__")
    }


def events(folder: str) -> list[tuple[int, str, Any]]:
    """Returns step, tag and number or text of every value in the events of a folder."""
    found = []
    for path in sorted(glob.glob(os.path.join(folder, "events.out.tfevents.*"))):
        for event in tf.train.summary_iterator(path):
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    found.append((event.step, value.tag, value.simple_value))
                else:
                    found.append((event.step, value.tag, value.WhichOneof("value")))
    return found


@pytest.mark.stock
def test_training_is_stocks_to_the_bit(tmp_path: pathlib.Path) -> None:
    """After 20 steps every variable, metric, prediction and file name is stock's; so are events."""
    config = {"save_summary_steps": 5, "save_checkpoints_steps": 10}
    pair = [
        make(tmp_path, kind, name, config=config)
        for kind, name in ((stock.ESTIMATOR.Estimator, "stock"), (Estimator, "bridge"))
    ]
    for job in pair:
        job.train(houses.data, steps=20)
    theirs, ours = pair

    assert jobs.largest_difference(jobs.saved(theirs), jobs.saved(ours))[0] == 0.0
    assert theirs.evaluate(lambda: houses.data(3)) == ours.evaluate(lambda: houses.data(3))
    assert [float(s["price"][0]) for s in theirs.predict(lambda: houses.data(2))] == [
        float(s["price"][0]) for s in ours.predict(lambda: houses.data(2))
    ]
    # When summaries are due depends on a read of the global step, which on either side may come
    # before the step is counted or after; so the kinds of events are compared, not their steps.
    kinds = [{each[1] for each in events(job.model_dir)} for job in pair]
    assert kinds[0] == kinds[1]
    assert "loss" in kinds[1]
    assert events(theirs.eval_dir()) == events(ours.eval_dir())
    assert ("checkpoint_path", "tensor") in {each[1:] for each in events(ours.eval_dir())}
    names = [
        sorted(name for name in os.listdir(job.model_dir) if not name.startswith("events"))
        for job in pair
    ]
    assert names[0] == names[1]
    assert {"checkpoint", "graph.pbtxt", "model.ckpt-20.index", "eval"} <= set(names[1])


@pytest.mark.stock
@pytest.mark.parametrize("outputs", [None, several_outputs])
def test_exported_signatures_are_stocks(outputs: Any, tmp_path: pathlib.Path) -> None:
    """Names, methods, tensor names, types and shapes of all signatures, in all modes."""
    found = []
    for kind, name in ((stock.ESTIMATOR.Estimator, "stock"), (Estimator, "bridge")):
        job = make(tmp_path, kind, name, outputs=outputs)
        job.train(houses.data, steps=1)
        path = job.experimental_export_all_saved_models(
            str(tmp_path / f"{name} exported"),
            {
                "train": houses.supervised_receiver,
                "eval": houses.supervised_receiver,
                "infer": houses.serving_receiver,
            },
        )
        files = sorted(
            str(found.relative_to(os.fsdecode(path)))
            for found in pathlib.Path(os.fsdecode(path)).rglob("*")
            if found.name != "fingerprint.pb"
        )
        variables = tf.train.list_variables(os.path.join(os.fsdecode(path), "variables/variables"))
        found.append(
            (*(signatures(path, tag) for tag in ("serve", "eval", "train")), files, variables)
        )
    assert found[0] == found[1]


@pytest.mark.stock
def test_stock_warm_starts_from_ours_and_the_other_way_round(tmp_path: pathlib.Path) -> None:
    """Either side's export or checkpoint gives the other's variables the same start."""
    kinds = {"stock": stock.ESTIMATOR.Estimator, "bridge": Estimator}
    sources = {}
    for name, kind in kinds.items():
        job = make(tmp_path, kind, f"{name} source").train(houses.data, steps=3)
        sources[name] = job.export_saved_model(
            str(tmp_path / f"{name} exported"), houses.serving_receiver
        )
    starts = [
        started(make(tmp_path, kind, f"{name} from {other}", warm_start_from=sources[other]))
        for name, kind in kinds.items()
        for other in kinds
    ]
    for values in starts[1:]:
        assert jobs.largest_difference(starts[0], values)[0] == 0.0


@pytest.mark.stock
def test_stocks_errors(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """What stock's methods refuse raises a class that catches of stock's catch too."""
    caplog.set_level(logging.ERROR)

    def outcomes(kind: Any, name: str) -> list[Any]:
        job = make(tmp_path, kind, name)

        def raised(function: Any) -> type[BaseException]:
            with pytest.raises(Exception) as caught:  # noqa: PT011 - compared below
                function()
            return caught.type

        before = [
            raised(lambda: job.export_saved_model(str(tmp_path / "e"), houses.serving_receiver)),
            raised(lambda: job.get_variable_value("hidden")),
            raised(lambda: job.train(houses.data, steps=-1)),
            raised(lambda: job.train(houses.data, steps=1, max_steps=1)),
            raised(lambda: job.train(houses.data, hooks=[3])),
            raised(lambda: job.evaluate(houses.data, steps=0)),
            raised(lambda: next(job.predict(houses.data, predict_keys=["cost"]))),
        ]
        job.train(houses.data, steps=1)
        renamed = make(tmp_path, kind, name, prefix="renamed")
        return [
            *before,
            raised(
                lambda: renamed.export_saved_model(str(tmp_path / "e"), houses.serving_receiver)
            ),
            raised(lambda: job.export_saved_model(str(tmp_path / "e"), None)),
            raised(lambda: job.experimental_export_all_saved_models(str(tmp_path / "e"), {})),
        ]

    theirs = outcomes(stock.ESTIMATOR.Estimator, "stock")
    ours = outcomes(Estimator, "bridge")
    for position, (expected, found) in enumerate(zip(theirs, ours, strict=True)):
        assert issubclass(found, expected), position
