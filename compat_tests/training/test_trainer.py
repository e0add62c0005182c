"""`tf2_engine.training.Trainer`: which ops run in each mode, exports, and what is refused."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.programs import jobs
from compat_tests.training.trainers import (
    BATCH,
    NEAR,
    RATE,
    START,
    Receiver,
    input_fn,
    make,
    minimized,
    model,
    values,
)
from tf2_engine import errors, training

v1 = tf.compat.v1


@pytest.mark.full
def test_evaluations_of_other_checkpoints_change_no_training(tmp_path: pathlib.Path) -> None:
    """An older checkpoint is evaluated as it was; training goes on from the latest one."""
    trainer = make(model(minimized), tmp_path / "one", save_checkpoints_steps=2)
    trainer.train(input_fn, max_steps=4)
    latest = values(trainer)
    older = trainer.evaluate(input_fn, 1, checkpoint_path=str(tmp_path / "one/model.ckpt-2"))
    assert older["global_step"] == 2
    assert older["scale"] != latest["scale"][0]
    next(trainer.predict(input_fn, checkpoint_path=str(tmp_path / "one/model.ckpt-2")))
    assert trainer.evaluate(input_fn, steps=1)["scale"] == latest["scale"][0]
    assert trainer.get_variable_value("scale")[0] == latest["scale"][0]
    names = trainer.get_variable_names()
    assert {"scale", "dense/kernel", "words", "global_step"} <= set(names)
    assert trainer.get_variable_value("global_step") == 4
    assert all(trainer.get_variable_value(name) is not None for name in names)
    np.testing.assert_array_equal(trainer.get_variable_value("words"), latest["words"])

    # Another process trains on.
    make(model(minimized), tmp_path / "one").train(input_fn, max_steps=5)
    assert trainer.evaluate(input_fn, steps=1)["global_step"] == 5
    trainer.train(input_fn, steps=1)
    assert int(trainer.step.numpy()) == 6


def writing_model(features: Any, labels: Any, mode: str) -> training.ModelSpec:
    """Has everything that writes variables in every mode; only a training returns it."""
    counter = v1.get_variable("counter", [], initializer=v1.zeros_initializer(), trainable=False)
    ops = [v1.assign_add(counter, 1.0)]
    net = v1.layers.batch_normalization(features["word"], training=True, name="norm")
    positive = tf.reduce_mean(net) > -1.0
    two, three = (lambda: v1.assign_add(counter, 2.0)), (lambda: v1.assign(counter, 3.0))
    ops.append(v1.cond(positive, two, three))
    net = v1.layers.dense(net + features["word"], 2, name="dense")
    v1.metrics.mean(net)
    net = v1.layers.dense(net, 1, name="out")
    labels = tf.ones_like(net) if labels is None else labels
    loss = v1.losses.mean_squared_error(labels, net)
    momentum, adam = v1.train.MomentumOptimizer(RATE, 0.9), v1.train.AdamOptimizer(RATE)
    trained = [each for each in v1.trainable_variables() if "dense" in each.name]
    others = [each for each in v1.trainable_variables() if "dense" not in each.name]
    with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
        pairs = training.compute_gradients(adam, loss, others)
        ops += [training.minimize(momentum, loss, None, trained), adam.apply_gradients(pairs)]
    ops.append(training.ExponentialMovingAverage(0.9).apply(trained))
    ops.append(v1.assign_add(v1.train.get_global_step(), 1))
    by_input = v1.gradients(loss, features["word"])[0]
    counters = tf.fill([BATCH], counter)
    metrics = (lambda counters: {"counter": v1.metrics.mean(counters)}, [counters])
    return training.ModelSpec(
        mode,
        {"net": net, "by_input": by_input, "counter": counters},
        loss,
        tf.group(*ops),
        metrics,
    )


def test_evaluations_and_predictions_run_only_what_they_return(tmp_path: pathlib.Path) -> None:
    """A train_op, updates and assignments that a model_fn makes in every mode change nothing."""
    trainer = make(writing_model, tmp_path)
    trainer.train(input_fn, max_steps=3)
    expected = values(trainer)
    assert expected["counter"] == 9.0  # of each step an assign_add of 1 and one of 2
    assert {"norm/moving_mean", "dense/kernel/Momentum", "out/kernel/Adam"} <= set(expected)
    assert "mean/total" not in expected  # a local variable
    first = trainer.evaluate(input_fn, steps=3)
    predicted = next(trainer.predict(input_fn))
    assert first["counter"] == predicted["counter"] == 9.0
    assert np.any(predicted["by_input"])
    assert trainer.evaluate(input_fn, steps=3) == first
    jobs.assert_equal(values(trainer), expected)

    # Where the evaluation creates the variables.
    another = make(writing_model, tmp_path)
    assert another.evaluate(input_fn, steps=3) == first
    assert int(another.train(input_fn, steps=1).step.numpy()) == 4


def test_a_step_runs_what_the_returned_train_op_needs(tmp_path: pathlib.Path) -> None:
    """Another train_op, assignments and assertions that nothing returns do not run."""

    def choosing(features: Any, labels: Any) -> training.ModelSpec:
        weight = v1.get_variable("weight", [], initializer=v1.zeros_initializer())
        counts = v1.get_variable("counts", [2], initializer=v1.zeros_initializer(), trainable=False)
        loss = weight + 0.0 * tf.reduce_sum(features["word"])
        training.minimize(v1.train.GradientDescentOptimizer(100.0), loss)
        v1.assign_add(counts, [1.0, 0.0])
        tf.debugging.assert_negative(tf.abs(weight))
        with tf.control_dependencies([v1.assign_add(counts, [0.0, 1.0])]):
            train_op = training.minimize(v1.train.GradientDescentOptimizer(0.5), loss)
        v1.assign(weight, 7.0)
        return training.ModelSpec("train", loss=loss, train_op=train_op)

    trained = values(make(choosing, tmp_path).train(input_fn, steps=3))
    assert trained["weight"] == -1.5
    np.testing.assert_array_equal(trained["counts"], [0.0, 3.0])


def test_reads_that_wait_for_no_update_see_the_variables_before_the_step(
    tmp_path: pathlib.Path,
) -> None:
    """As in a session, whose reads start at once; a control dependency makes a read wait."""

    def reading(features: Any, labels: Any) -> training.ModelSpec:
        weight = v1.get_variable("weight", [], initializer=v1.ones_initializer())
        with v1.variable_scope("normed", regularizer=lambda each: tf.reduce_sum(each)):
            net = v1.layers.batch_normalization(features["word"], training=True, momentum=0.0)
        updates = v1.get_collection(v1.GraphKeys.UPDATE_OPS)
        train_op = training.minimize(v1.train.GradientDescentOptimizer(0.5), weight)
        with tf.control_dependencies([train_op]):
            late = tf.identity(weight)
        loss = training.get_regularization_loss() + 100.0 * weight + 1000.0 * late
        loss += 0.0 * tf.reduce_sum(net)
        return training.ModelSpec("train", loss=loss, train_op=tf.group(train_op, *updates))

    losses: list[float] = []

    class Losses(v1.train.SessionRunHook):
        def before_run(self, run_context: Any) -> Any:
            return v1.train.SessionRunArgs(loss_of_step)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            losses.append(float(run_values.results))

    def model_fn(features: Any, labels: Any) -> training.ModelSpec:
        nonlocal loss_of_step
        spec = reading(features, labels)
        loss_of_step = spec.loss
        return spec

    loss_of_step: Any = None
    seen = values(make(model_fn, tmp_path).train(input_fn, hooks=[Losses()], steps=2))
    # Of two columns: gamma 1 and moving variance 1 at first, beta and moving mean 0. All rows of
    # the table are equal, so that the first step's variance is 0 and its mean START.
    assert losses == [4.0 + 100.0 + 500.0, 2.0 + 2 * START + 50.0 + 0.0]
    assert seen["weight"] == 0.0


@pytest.mark.parametrize("kind", ["sparse", "parsed"])
def test_a_batch_of_fixed_size_has_it_in_the_shapes_of_activations(
    kind: str, tmp_path: pathlib.Path
) -> None:
    """As on a TPU; if the last batch may be smaller, the size of a batch is unknown."""
    found: list[int | None] = []

    def model_fn(features: Any, labels: Any, mode: str) -> training.ModelSpec:
        scale = v1.get_variable("scale", [], initializer=v1.initializers.ones())
        found.append(features["word"].shape[0])
        loss = 0.1 * scale * tf.reduce_sum(features["word"])
        return training.ModelSpec(mode, loss=loss, train_op=minimized(loss))

    def batches(drop_remainder: bool) -> Callable[[Any], tf.data.Dataset]:
        def parsed(ids: tf.Tensor) -> tuple[dict[str, Any], tf.Tensor]:
            word = tf.sparse.from_dense(ids)
            if kind == "parsed":  # Parsed Examples have a shape that is unknown.
                shape = tf.numpy_function(lambda shape: shape, [word.dense_shape], tf.int64)
                word = tf.SparseTensor(word.indices, word.values, tf.ensure_shape(shape, [2]))
            return {"word": word}, tf.ones_like(ids)

        words = tf.data.Dataset.range(1, 9).map(lambda number: number[tf.newaxis])
        return lambda params: words.batch(BATCH, drop_remainder=drop_remainder).map(parsed)

    make(model_fn, tmp_path / "fixed").train(batches(True), max_steps=2)
    assert {*found} == {BATCH}
    found.clear()
    make(model_fn, tmp_path / "any").train(batches(False), max_steps=2)
    assert {*found} == {None}


class Exporter:
    name = "kept"

    def __init__(self) -> None:
        self.calls: list[tuple[int, bool]] = []

    def export(self, estimator: Any, path: str, checkpoint: str, result: Any, final: bool) -> int:
        assert path.endswith("/export/kept")
        assert checkpoint.endswith(f"-{result['global_step']}")
        self.calls.append((result["global_step"], final))
        return len(self.calls)


@pytest.mark.full
def test_training_stops_early_and_exports(tmp_path: pathlib.Path) -> None:
    """Each checkpoint is evaluated and exported; training ends when the metric is stuck."""
    trainer = make(model(minimized), tmp_path, save_checkpoints_steps=2)
    every = {"run_every_secs": None, "run_every_steps": 1}
    higher = training.stop_if_higher_hook(trainer, "loss", -1.0, min_steps=6, **every)
    exporter = Exporter()
    last, exported = training.train_and_evaluate(
        trainer,
        training.TrainSpec(input_fn, max_steps=50, hooks=[higher]),
        training.EvalSpec(input_fn, steps=1, exporters=exporter),
    )
    # Callbacks come before the checkpoint of a step.
    assert last["global_step"] == 7
    assert exporter.calls == [(2, False), (4, False), (6, False), (7, False), (7, True)]
    assert exported == [5]

    stuck = training.stop_if_no_increase_hook(trainer, "loss", 4, **every)
    trainer.train(input_fn, hooks=[stuck], steps=50)
    assert int(trainer.step.numpy()) == 8
    with pytest.raises(errors.MissingMetric, match="has no metric 'auc', only"):
        trainer.train(input_fn, [training.stop_if_lower_hook(trainer, "auc", 1.0, **every)], 3)


@pytest.mark.full
def test_exports_need_nothing_but_tensorflow(tmp_path: pathlib.Path) -> None:
    """A SavedModel answers as `predict`, and has files beside it."""
    trainer = make(model(minimized), tmp_path)
    trainer.train(input_fn, steps=2)
    extra = tmp_path / "extra.txt"
    extra.write_text("beside")
    path = trainer.export_saved_model(
        str(tmp_path / "export"), Receiver, assets_extra={"notes/extra.txt": str(extra)}
    ).decode()
    assert (pathlib.Path(path) / "assets.extra/notes/extra.txt").read_text() == "beside"
    served = tf.saved_model.load(path).signatures["serving_default"](
        tf.constant([[2], [3]], tf.int64)
    )
    predicted = [next(trainer.predict(input_fn, ["net"]))]
    assert predicted[0]["net"].shape == (1,)
    words, variables = values(trainer)["words"], values(trainer)
    expected = (words[[2, 3]] @ variables["dense/kernel"] + variables["dense/bias"]) * variables[
        "scale"
    ]
    np.testing.assert_allclose(served["net"], expected, rtol=0, atol=NEAR)


@pytest.mark.full
@pytest.mark.parametrize("method", ["train", "evaluate"])
def test_a_model_dir_that_is_a_file_is_refused(method: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    trainer = make(model(minimized), tmp_path / "file" / "job")

    def unread() -> Any:
        raise AssertionError("The input is read.")

    with pytest.raises(errors.CannotWrite, match="/file is not a directory"):
        getattr(trainer, method)(unread, steps=1)


@pytest.mark.parametrize("tpu", [None, "", "local"])
def test_a_resolver_without_a_tpu_is_none(tpu: str | None) -> None:
    """A resolver without a TPU means no cluster; a config without one trains on the host."""
    assert training.TPUClusterResolver(tpu, zone=None) is None
    assert training.RunConfig(cluster=None).replace(model_dir="model").cluster is None


@pytest.mark.parametrize("devices", [["/cpu:0"], ["/cpu:0", "/cpu:1"]])
def test_strategies_that_copy_variables_are_refused(
    devices: list[str], tmp_path: pathlib.Path
) -> None:
    # There is one device; a test before this one may have said that each op has to have its own.
    tf.config.set_soft_device_placement(True)
    with (
        tf.distribute.MirroredStrategy(devices).scope(),
        pytest.raises(errors.InvalidInput, match=r"under MirroredStrategy.*OneDeviceStrategy"),
    ):
        make(model(minimized), tmp_path)


@pytest.mark.full
def test_wrong_inputs_are_refused(tmp_path: pathlib.Path) -> None:
    trainer = make(model(minimized), tmp_path)
    with pytest.raises(errors.WrongType, match=r"must return a tf\.data\.Dataset"):
        trainer.train(lambda: {"word": 1}, steps=1)
    dense = tf.data.Dataset.from_tensors(({"word": tf.ones([4, 1], tf.int64)}, tf.ones([4, 1])))
    with pytest.raises(errors.InvalidInput, match=r"The ids of \['word'\] are dense"):
        trainer.train(lambda: dense, steps=1)
    with pytest.raises(errors.OutOfOrder, match=r"Trainer\.train writes checkpoints"):
        training.Saver().save(None, "path")
    with pytest.raises(errors.InvalidInput, match=r"no checkpoint in .*; train first"):
        trainer.export_saved_model(str(tmp_path), dict)
    with pytest.raises(errors.OutOfOrder, match="inside a model_fn that a Trainer calls"):
        training.get_regularization_losses()
    with pytest.raises(errors.InvalidSpec, match="zero_debias=True is not supported"):
        training.ExponentialMovingAverage(0.5, zero_debias=True)
