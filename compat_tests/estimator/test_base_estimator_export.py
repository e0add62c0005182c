"""Exports and warm starts of an Estimator, compared with stock's."""

from __future__ import annotations

import logging
import os
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.conftest import HAS_STOCK
from compat_tests.programs import houses, jobs
from compat_tests.support.base_jobs import STEPS, make, run_signature, several_outputs, started
from compat_tests.support.served import served
from estimator_bridge import errors
from estimator_bridge.runtime.estimator.base_estimator import Estimator
from estimator_bridge.runtime.saving.warm_starting import WarmStartSettings

if HAS_STOCK:
    from compat_tests.support import stock

# --- Export -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def source(tmp_path_factory: Any) -> Any:
    folder = tmp_path_factory.mktemp("source")
    return make(folder).train(houses.data, steps=STEPS), folder


def trained(source: Any, tmp_path: pathlib.Path, **options: Any) -> Any:
    """Returns a job that goes on from a copy of the trained one."""
    shutil.copytree(source[1] / "job", tmp_path / "job")
    return make(tmp_path, **options)


def test_exported_predictions_are_those_of_predict(source: Any, tmp_path: pathlib.Path) -> None:
    """An exported model predicts the same as `predict`, from serialised or parsed samples.

    So it does in a process that imports TensorFlow alone, after its sources are gone.
    """
    job = trained(source, tmp_path, outputs=several_outputs)
    expected = [sample["price"] for sample in job.predict(lambda: houses.data(2))]

    path = job.export_saved_model(str(tmp_path / "exported"), houses.serving_receiver)

    assert isinstance(path, bytes)
    assert os.path.basename(path).isdigit()
    assert os.listdir(tmp_path / "exported") == [os.fsdecode(os.path.basename(path))]
    assert os.listdir(os.path.join(os.fsdecode(path), "assets")) == ["streets.txt"]
    os.remove(tmp_path / "streets.txt")

    serialized, features = houses.examples(2)
    examples = {"examples": np.array(serialized, object)}
    (alone,) = served([os.fsdecode(path)], examples, tmp_path)
    parsed = run_signature(path, "parsed:serving_default", features)
    value = run_signature(path, "value", {"inputs": serialized})
    rounding = houses.rounding_of_prices(jobs.saved(job))
    for answer in (alone["price"], parsed["price"], value["outputs"]):
        # Two batches of four are served as one of eight.
        np.testing.assert_allclose(answer, expected, rtol=0, atol=rounding)


RECEIVERS = {
    **dict.fromkeys(("train", "eval"), houses.supervised_receiver),
    "infer": houses.serving_receiver,
}


def test_all_modes_are_exported_with_one_set_of_variables(
    source: Any, tmp_path: pathlib.Path
) -> None:
    """Each mode is a graph with its own tag and signature; the training graph can be trained."""
    job = trained(source, tmp_path)
    path = job.experimental_export_all_saved_models(str(tmp_path / "exported"), RECEIVERS)

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
    answer = run_signature(path, "serving_default", {"examples": houses.examples(1)[0]})
    assert set(answer) == {"price", "double"}


@pytest.mark.stock
@pytest.mark.parametrize("outputs", [pytest.param(None, marks=pytest.mark.full), several_outputs])
def test_exported_signatures_are_stocks(outputs: Any, tmp_path: pathlib.Path) -> None:
    """All signatures of all modes have stock's names, methods, tensor names, types and shapes."""
    exports = []
    for kind, name in ((stock.ESTIMATOR.Estimator, "stock"), (Estimator, "bridge")):
        job = make(tmp_path, kind, name, outputs=outputs).train(houses.data, steps=1)
        exported = job.experimental_export_all_saved_models(
            str(tmp_path / f"{name} exported"), RECEIVERS
        )
        path = pathlib.Path(os.fsdecode(exported))
        files = {str(file.relative_to(path)) for file in path.rglob("*")} - {"fingerprint.pb"}
        variables = tf.train.list_variables(str(path / "variables/variables"))
        signatures = [jobs.signatures(exported, tag) for tag in ("serve", "eval", "train")]
        exports.append((signatures, files, variables))
    assert exports[0] == exports[1]


def test_extra_assets_text_and_one_mode(source: Any, tmp_path: pathlib.Path) -> None:
    """Extra files are added at their paths, the graph may be text, and the mode may be chosen."""
    job = trained(source, tmp_path)
    (tmp_path / "note.txt").write_text("a note")
    exported = job.export_saved_model(
        str(tmp_path / "exported"),
        houses.supervised_receiver,
        assets_extra={"notes/first.txt": str(tmp_path / "note.txt")},
        as_text=True,
        checkpoint_path=jobs.first_checkpoint(job),
        experimental_mode="eval",
    )
    path = pathlib.Path(os.fsdecode(exported))

    assert (path / "assets.extra/notes/first.txt").read_text() == "a note"
    assert 'tags: "eval"' in (path / "saved_model.pbtxt").read_text()
    reader = tf.train.load_checkpoint(str(path / "variables/variables"))
    assert reader.get_tensor("global_step") == 0


def test_a_failed_export_leaves_nothing(source: Any, tmp_path: pathlib.Path) -> None:
    base = tmp_path / "exported"
    with pytest.raises(errors.NotTrained, match="no checkpoint"):
        make(tmp_path).export_saved_model(str(base), houses.serving_receiver)
    job = trained(source, tmp_path)
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


@pytest.mark.stock
def test_stocks_errors(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where stock's methods raise an error, ours raise one that the same `except` catches."""
    caplog.set_level(logging.ERROR)
    base = str(tmp_path / "exported")

    def outcomes(kind: Any, name: str) -> list[type[Exception] | None]:
        job, renamed = (make(tmp_path, kind, name, prefix=prefix) for prefix in ("", "renamed"))
        calls = (
            lambda: job.export_saved_model(base, houses.serving_receiver),
            lambda: next(job.predict(houses.data, predict_keys=["cost"])),
            lambda: job.train(houses.data, steps=1),
            lambda: renamed.export_saved_model(base, houses.serving_receiver),
            lambda: job.export_saved_model(base, None),
            lambda: job.experimental_export_all_saved_models(base, {}),
        )
        return [stock.raised(call) for call in calls]

    theirs, ours = outcomes(stock.ESTIMATOR.Estimator, "stock"), outcomes(Estimator, "bridge")
    assert [kind is None for kind in theirs] == [False, False, True, False, False, False]
    for expected, actual in zip(theirs, ours, strict=True):
        assert actual is expected or issubclass(actual, expected), (actual, expected)


# --- Warm start -------------------------------------------------------------------------


EMBEDDING = "input_layer/street_embedding/embedding_weights"


def test_a_path_warm_starts_trainable_variables(source: Any, tmp_path: pathlib.Path) -> None:
    """A warm start from a checkpoint or a SavedModel restores trainable variables alone."""
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
    """WarmStartSettings may hold a pattern, a list with slots, other names, a new vocabulary."""
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


@pytest.mark.parametrize(
    "initializer, largest",
    [
        # The square root of 6 / (inputs + outputs) of the whole variable, [5, 3].
        pytest.param(tf.glorot_uniform_initializer(), (6 / 8) ** 0.5, id="variance scaling"),
        pytest.param(tf.keras.initializers.he_uniform(), (6 / 5) ** 0.5, id="of Keras"),
        pytest.param(tf.orthogonal_initializer(), 1.0, id="orthogonal"),
        pytest.param(tf.constant_initializer(0.5), 0.5, id="constant"),
        pytest.param(tf.compat.v2.keras.initializers.HeUniform, (6 / 5) ** 0.5, id="a class"),
        pytest.param(tf.constant_initializer(np.full([5, 3], 0.5)), 0.5, id="of doubles"),
    ],
)
def test_new_words_start_from_initializers_that_need_a_shape(
    initializer: Any, largest: float, source: Any, tmp_path: pathlib.Path
) -> None:
    """A backup initializer sees the whole variable's shape where TensorFlow does not know one."""
    base, _ = source
    old = tmp_path / "old.txt"
    old.write_text("a\nb\nc\nd\ne\n")
    new = tmp_path / "new.txt"
    new.write_text("x\nd\ny\nb\nz\n")
    info = tf.train.VocabInfo(str(new), 5, 0, str(old), backup_initializer=initializer)
    settings = WarmStartSettings(base.model_dir, None, {EMBEDDING: info})
    moved = started(make(tmp_path, warm_start_from=settings))[EMBEDDING]

    np.testing.assert_array_equal(moved[[1, 3]], jobs.saved(base)[EMBEDDING][[3, 1]])
    fresh_rows = np.abs(moved[[0, 2, 4]])
    assert 0 < fresh_rows.max() <= largest + 1e-6


def test_an_initializer_of_no_use_is_refused_by_name(source: Any, tmp_path: pathlib.Path) -> None:
    base, _ = source
    words = tmp_path / "words.txt"
    words.write_text("a\nb\nc\nd\ne\n")
    for wrong in (0.5, "zeros", tf.constant_initializer(np.ones([5, 3]))):
        info = tf.train.VocabInfo(str(words), 4, 1, str(words), backup_initializer=wrong)
        settings = WarmStartSettings(base.model_dir, None, {EMBEDDING: info})
        kind = errors.InvalidInput if callable(wrong) else errors.WrongType
        with pytest.raises(kind, match=f"backup_initializer of '{EMBEDDING}"):
            started(make(tmp_path, warm_start_from=settings))


def test_evaluation_prediction_and_export_are_warm_started(
    source: Any, tmp_path: pathlib.Path
) -> None:
    base, _ = source
    job = make(tmp_path, warm_start_from=base.model_dir)

    expected = base.evaluate(lambda: houses.data(2))
    assert job.evaluate(lambda: houses.data(2))["loss"] == expected["loss"]
    predicted = [sample["price"] for sample in base.predict(lambda: houses.data(1))]
    np.testing.assert_array_equal(
        [sample["price"] for sample in job.predict(lambda: houses.data(1))], predicted
    )
    path = job.export_saved_model(str(tmp_path / "exported"), houses.serving_receiver)
    answer = run_signature(path, "serving_default", {"examples": houses.examples(1)[0]})
    rounding = houses.rounding_of_prices(jobs.saved(base))
    np.testing.assert_allclose(answer["price"], predicted, rtol=0, atol=rounding)


def test_a_checkpoint_of_its_own_comes_first(source: Any, tmp_path: pathlib.Path) -> None:
    base, _ = source
    make(tmp_path).train(houses.data, steps=2)
    of_model_dir = jobs.saved(make(tmp_path))
    job = make(tmp_path, warm_start_from=base.model_dir)

    job.train(houses.data, steps=1)
    kept = jobs.saved(job, os.path.join(job.model_dir, "model.ckpt-2"))
    assert jobs.largest_difference(of_model_dir, kept)[0] == 0.0
    assert jobs.saved(job)["global_step"] == 3
