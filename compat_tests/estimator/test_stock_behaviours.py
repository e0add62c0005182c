"""What programs see of a running estimator; compared with stock if the program runs on a CPU."""

from __future__ import annotations

import logging
import os
import pathlib
import re
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.programs import tiny
from compat_tests.support import tpu_jobs
from estimator_bridge import errors, estimator
from tf2_engine.summaries.events import scalars_by_step

STEPS = 3


def batches() -> Any:
    xs = np.arange(24.0, dtype=np.float32).reshape(24, 1) / 24.0
    return tf.data.Dataset.from_tensor_slices(({"x": xs}, 2.0 * xs)).repeat().batch(4)


def job(namespace: Any, folder: pathlib.Path, fields: Any = dict, **settings: Any) -> Any:
    """Returns an Estimator of a linear model; `fields` returns more fields of its specs."""

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        weight = tf.get_variable("weight", [1, 1], initializer=tf.ones_initializer())
        output = tf.matmul(features["x"], weight)
        if mode == "infer":
            return namespace.EstimatorSpec(mode, predictions={"p": output})
        loss = tf.reduce_mean(tf.square(output - labels))
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, tf.train.get_global_step())
        return namespace.EstimatorSpec(mode, loss=loss, train_op=train_op, **fields())

    config = namespace.RunConfig(str(folder), log_step_count_steps=None, **settings)
    return namespace.Estimator(model_fn, config=config)


def weight(trained: Any) -> Any:
    return trained.get_variable_value("weight")


@pytest.mark.parametrize("kind", ["reference", "resource"])
def test_the_log_of_a_job_has_stocks_lines(
    namespace: Any, kind: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The lines of losses, steps and rates are stock's; a step that is a reference is read late.

    TensorFlow hands out the memory of a reference variable, and Python reads it when the step is
    over. The value of a resource variable is read in no fixed order to its increment.
    """
    shown = {"net": "MatMul"} | ({"gs": "global_step"} if kind == "reference" else {})
    trained = job(
        namespace,
        tmp_path,
        lambda: {"training_hooks": [tf.train.LoggingTensorHook(shown, every_n_iter=2)]},
        save_checkpoints_steps=2,
    )
    trained._config = trained._config.replace(log_step_count_steps=2)
    caplog.set_level(logging.INFO, "tensorflow")
    if kind == "reference":
        tf.disable_resource_variables()
    try:
        trained.train(batches, steps=3)
        trained.evaluate(batches, steps=2)
    finally:
        tf.enable_resource_variables()

    text = caplog.text.replace(str(tmp_path), "DIR")
    lines = re.findall(
        r"(loss = |(?<!_)step = \d+|gs = \d+|net = |global_step/sec|Saving [c'd]\S+ [^:\n]+"
        r"|Calling model|Done calling|Evaluation .*|Loss for final|Inference Time|Starting eval"
        r"|Finished eval)",
        text,
    )
    if kind == "resource":
        lines = [line for line in lines if not line.startswith("step = ")]
    assert lines == [
        line
        for line in (
            *("Calling model", "Done calling", "Saving checkpoints for 0 into DIR/model.ckpt."),
            *("loss = ", "step = 1", "gs = 1", "net = "),
            "Saving checkpoints for 2 into DIR/model.ckpt.",
            *("global_step/sec", "loss = ", "step = 3", "gs = 3", "net = "),
            *("Saving checkpoints for 3 into DIR/model.ckpt.", "Loss for final"),
            *("Calling model", "Done calling", "Starting eval", "Evaluation [1/2]"),
            *("Evaluation [2/2]", "Inference Time", "Finished eval"),
            *("Saving dict for global step 3", "loss = "),
            "Saving 'checkpoint_path' summary for global step 3",
        )
        if kind == "reference" or not line.startswith(("step", "gs"))
    ]


def test_nested_metrics_keep_their_structure(namespace: Any, tmp_path: pathlib.Path) -> None:
    nested = ((tf.constant, 2.0), (tf.constant, 3))

    def fields() -> Any:
        (two, _), (three, _) = [(make(value), value) for make, value in nested]
        return {"eval_metric_ops": {"nested": ((two, (three, two)), tf.no_op())}}

    metrics = job(namespace, tmp_path, fields).evaluate(batches, steps=1)
    assert metrics["nested"] == (2.0, (3, 2.0))


@pytest.mark.parametrize("steps", [None, 2])
def test_an_evaluation_without_a_batch_is_warned_of(
    steps: int | None, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its loss of 0 is no result: a warning says so, and there is none if there was a batch."""
    trained = job(estimator, tmp_path)

    assert trained.evaluate(lambda: batches().take(0), steps=steps)["loss"] == 0.0
    assert "Evaluation ran no steps" in caplog.text
    caplog.clear()
    trained.evaluate(lambda: batches().take(1), steps=steps)
    assert "no steps" not in caplog.text


def test_a_model_fn_without_a_spec_is_a_value_error(namespace: Any, tmp_path: pathlib.Path) -> None:
    classifier = namespace.Estimator(lambda features, labels: "no spec", str(tmp_path))
    with pytest.raises(ValueError, match="model_fn should return an EstimatorSpec"):
        classifier.train(batches, steps=1)


def test_hooks_read_the_step_of_an_evaluation(namespace: Any, tmp_path: pathlib.Path) -> None:
    """The graph of an evaluation counts its steps, where TensorFlow's own hooks look."""
    seen = []

    class Reader(tf.train.SessionRunHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            (step,) = run_context.session.graph.get_collection(tf.GraphKeys.EVAL_STEP)
            seen.append(int(run_context.session.run(step)))

    job(namespace, tmp_path).evaluate(batches, steps=STEPS, hooks=[Reader()])
    assert seen == [1, 2, 3]


def test_one_device_trains_as_none_does(namespace: Any, tmp_path: pathlib.Path) -> None:
    alone = job(namespace, tmp_path / "alone").train(batches, steps=STEPS)
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    settings = {"train_distribute": strategy, "eval_distribute": strategy}
    trained = job(namespace, tmp_path / "device", **settings).train(batches, steps=STEPS)

    np.testing.assert_array_equal(weight(trained), weight(alone))
    assert trained.evaluate(batches, steps=2) == alone.evaluate(batches, steps=2)


def test_a_checkpoint_is_a_saver_in_exports(namespace: Any, tmp_path: pathlib.Path) -> None:
    """`Scaffold(saver=tf.train.Checkpoint(...))` trains and exports."""

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        variable = tf.Variable([[2.0]], use_resource=True)
        step = tf.train.get_or_create_global_step()
        checkpoint = tf.compat.v2.train.Checkpoint(step=step, variable=variable)
        output = tf.matmul(features["x"], variable)
        return namespace.EstimatorSpec(
            mode,
            loss=tf.reduce_sum(output),
            train_op=tf.group(step.assign_add(1), variable.assign_add([[1.0]])),
            predictions={"p": output},
            scaffold=tf.train.Scaffold(saver=checkpoint),
        )

    trained = namespace.Estimator(model_fn, str(tmp_path)).train(batches, steps=STEPS)
    receive = namespace.export.build_raw_serving_input_receiver_fn({"x": tf.zeros([1, 1])})
    path = trained.export_saved_model(str(tmp_path / "exports"), receive)

    with tf.Graph().as_default(), tf.Session() as session:
        signature = tf.saved_model.loader.load(session, ["serve"], os.fsdecode(path)).signature_def
        (output,) = signature["serving_default"].outputs.values()
        assert session.run(output.name, {signature["serving_default"].inputs["x"].name: [[1.0]]})


def test_predictions_without_an_end_are_warned_of(
    namespace: Any, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An input of plain tensors never ends, and a dataset may."""
    trained = job(namespace, tmp_path).train(batches, steps=1)
    warned = []
    for input_fn in (batches, lambda: {"x": tf.ones([1, 1])}):
        caplog.clear()
        next(trained.predict(input_fn))
        warned.append("Input graph does not use tf.data.Dataset" in caplog.text)
    assert warned == [False, True]


def test_an_evaluation_in_memory_takes_variables_alone(
    namespace: Any, tmp_path: pathlib.Path
) -> None:
    """InMemoryEvaluatorHook refuses graphs that save other things than variables."""

    def fields() -> Any:
        other = tf.Variable([0.0], trainable=False, collections=[tf.GraphKeys.SAVEABLE_OBJECTS])
        init_op = tf.group(other.initializer, tf.global_variables_initializer())
        return {"scaffold": tf.train.Scaffold(init_op=init_op)}

    trained = job(namespace, tmp_path, fields)
    hook = namespace.experimental.InMemoryEvaluatorHook(trained, batches, steps=1)
    with pytest.raises(ValueError, match="does not support saveables"):
        trained.train(batches, steps=1, hooks=[hook])


@pytest.mark.parametrize("own", ["saver", "init_fn"])
def test_an_evaluation_in_memory_with_an_own_saver(
    namespace: Any, own: str, tmp_path: pathlib.Path
) -> None:
    """Stock refuses such a model; the bridge's hook evaluates a checkpoint of it."""

    def fields() -> Any:
        makes = {"saver": tf.train.Saver, "init_fn": lambda: lambda scaffold, session: None}
        return {"scaffold": tf.train.Scaffold(**{own: makes[own]()})}

    trained = job(namespace, tmp_path, fields)
    hook = namespace.experimental.InMemoryEvaluatorHook(trained, batches, steps=1)
    if namespace is not estimator:
        with pytest.raises(ValueError, match=f"does not support custom {own}"):
            trained.train(batches, steps=1, hooks=[hook])
        return
    trained.train(batches, steps=1, hooks=[hook])
    assert list(scalars_by_step(trained.eval_dir())) == [0, 1]


# With use_tpu=True, where stock needs a TPU.


def tpu_job(folder: pathlib.Path, fields: Any, optimizer: Any = None) -> Any:
    """Returns a TPUEstimator on two cores; `fields` takes the model's output."""

    def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        output = tf.layers.dense(features["x"], 1, name="dense")
        loss = tf.reduce_mean(tf.square(output - labels))
        train_op = (optimizer or cross_shard)().minimize(loss, tf.train.get_global_step())
        kind = estimator.tpu.TPUEstimatorSpec
        more = fields(output)
        if "training_chief_hooks" in more:
            kind = estimator.EstimatorSpec
        return kind(mode, loss=loss, train_op=train_op, **more)

    return tpu_jobs.make(model_fn, folder, tpu={"iterations_per_loop": 2, "num_shards": 2})


def cross_shard() -> Any:
    return tf.tpu.CrossShardOptimizer(tf.train.GradientDescentOptimizer(0.1))


def tpu_batches(params: Any) -> Any:
    return batches().unbatch().batch(params["batch_size"], drop_remainder=True)


def test_a_host_call_is_made_in_every_step_of_an_evaluation(tmp_path: pathlib.Path) -> None:
    """Hooks see the steps of an evaluation as one; the host call does not."""
    counts, steps = [], []

    def host_call(_: Any) -> Any:
        with tf.variable_scope("host", reuse=tf.AUTO_REUSE):
            count = tf.get_variable(
                "count", [], tf.int32, tf.zeros_initializer(), collections=["local_variables"]
            )
        return tf.assign_add(count, 1)

    class Reader(tf.train.SessionRunHook):
        def begin(self) -> None:
            (self.count,) = [v for v in tf.local_variables() if "host/count" in v.name]
            (self.step,) = tf.get_collection(tf.GraphKeys.EVAL_STEP)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            counts.append(int(run_context.session.run(self.count)))
            steps.append(int(run_context.session.run(self.step)))

    trained = tpu_job(tmp_path, lambda output: {"host_call": (host_call, [output])})
    trained.evaluate(tpu_batches, steps=5, hooks=[Reader()])
    assert (counts, steps) == ([5], [5])


def test_hooks_of_a_chief_are_refused_on_a_tpu(tmp_path: pathlib.Path) -> None:
    hooks = {"training_chief_hooks": [tf.train.SessionRunHook()]}
    with pytest.raises(errors.InvalidInput, match="training_chief_hooks returned by EstimatorSpec"):
        tpu_job(tmp_path, lambda output: hooks).train(tpu_batches, steps=1)


@pytest.mark.parametrize("control_flow", [1, 2])
def test_gradients_of_several_cores_must_be_summed(
    control_flow: int, tmp_path: pathlib.Path
) -> None:
    """Without a CrossShardOptimizer training is refused where stock refuses it, in its words."""
    plain = tpu_job(tmp_path, lambda output: {}, lambda: tf.train.GradientDescentOptimizer(0.1))
    was = tf.control_flow_v2_enabled()
    (tf.disable_control_flow_v2 if control_flow == 1 else tf.enable_control_flow_v2)()
    try:
        if control_flow == 1:
            with pytest.raises(errors.InvalidInput, match="CrossShardOptimizer must be used"):
                plain.train(tpu_batches, steps=1)
        else:
            plain.train(tpu_batches, steps=1)
    finally:
        (tf.enable_control_flow_v2 if was else tf.disable_control_flow_v2)()


@pytest.mark.parametrize("drop_remainder", [True, False])
def test_activations_have_the_static_size_of_a_batch(
    drop_remainder: bool, tmp_path: pathlib.Path
) -> None:
    """Activations have a static batch size as on a TPU, unless a batch may be smaller."""
    shapes = []

    def body(features: Any) -> Any:
        net = tf.keras.layers.DenseFeatures([tiny.column()])(features)
        shapes.append(net.shape.as_list())
        return tf.matmul(net, tf.get_variable("weight", [2, 1]))

    def input_fn(params: Any) -> Any:
        ids = tf.sparse.from_dense(tf.ones([32, 2], tf.int64))
        dataset = tf.data.Dataset.from_tensor_slices(({"a": ids}, tf.zeros([32, 1])))
        return dataset.batch(params["batch_size"], drop_remainder=drop_remainder)

    trained = tiny.make(estimator, str(tmp_path), [tiny.column()], use_tpu=True, body=body)
    trained.train(input_fn, steps=1)
    assert shapes == [[tiny.BATCH if drop_remainder else None, 2]]
