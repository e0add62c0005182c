"""`verify` finds the first differing op of a model from sketches of op outputs."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.support import recordings
from compat_tests.support.recordings import rows, step
from estimator_bridge.estimator import EstimatorSpec
from estimator_bridge.recording.files import MODEL_OPS, Recording, RecordingWriter
from estimator_bridge.verification.procedure import first_differing_op
from estimator_bridge.verification.record.capture import Capture, ModelOp, sketching_model_fn

OPS = [("dense/MatMul", "MatMul", "train.py, line 7"), ("Relu", "Relu", "train.py, line 8")]


def sketched(directory: pathlib.Path, sketch: Any, ops: Any = OPS) -> Recording:
    values = {**step(rows()), MODEL_OPS: {"sketch": np.array(sketch, np.float64)}}
    recordings.record(directory, steps=(values,))
    writer = RecordingWriter(directory / "beside")
    writer.note("model-ops", ops)
    (directory / "beside" / "model-ops.json").rename(directory / "model-ops.json")
    return Recording(directory)


@pytest.mark.parametrize(
    "b, ops, message",
    [
        (
            [[1.0, 2.0], [1.0, 2.01]],
            OPS,
            "differs is Relu (Relu, train.py, line 8). The relative difference is 5.0e-03",
        ),
        ([[1.1, 2.0], [9.0, 9.0]], OPS, "differs is dense/MatMul (MatMul, train.py, line 7)"),
        (
            [[np.nan, 2.0], [1.0, 2.0]],
            OPS,
            "differs is dense/MatMul (MatMul, train.py, line 7). The relative difference is inf",
        ),
        (
            [[1.0, 2.0], [3.0, 3.0], [1.0, 2.0]],
            [OPS[0], ("mul", "Mul", "train.py, line 9"), OPS[1]],
            "On side B alone: mul (Mul, train.py, line 9).",
        ),
        ([[1.0, 2.0], [1.0, 2.0]], [OPS[0], ("Relu", "Elu", "")], "On side A alone: Relu (Relu,"),
    ],
)
def test_the_first_op_is_named(b: Any, ops: Any, message: str, tmp_path: pathlib.Path) -> None:
    """The first differing op has a name, type, line and difference; one-sided ops are listed."""
    a = sketched(tmp_path / "a", [[1.0, 2.0], [1.0, 2.0]])
    cause = first_differing_op(a, sketched(tmp_path / "b", b, ops), 1)
    assert message in cause.text


def test_rounding_is_no_other_output(tmp_path: pathlib.Path) -> None:
    a = sketched(tmp_path / "a", [[1.0, 2.0], [1.0, 2.0]])
    near = sketched(tmp_path / "b", [[1.0 + 1e-7, 2.0], [1.0, 2.0 - 1e-7]])
    assert first_differing_op(a, near, 1) is None
    assert first_differing_op(a, near, 2) is None


def test_ops_are_sketched_that_run_anyway() -> None:
    """Float ops up to the loss are sketched; ops in branches and after writes are not.

    Their values stay the same, and each op has the line of the program that creates it.
    """
    described: list[ModelOp] = []
    capture = Capture()

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        net = tf.multiply(features, 2.0, name="twice")
        counter = tf.get_variable("counter", [], initializer=tf.zeros_initializer())
        with tf.control_dependencies([counter.assign_add(1.0)]):
            tf.identity(net, name="after a write".replace(" ", "_"))
        average = tf.multiply(net, 0.1, name="average")
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, average)
        tf.cond(tf.reduce_sum(net) > 1e9, lambda: tf.sqrt(net, name="never"), lambda: net)
        tf.random_uniform([2], name="initial")
        loss = tf.reduce_sum(net, name="total")
        tf.negative(loss, name="later")
        tf.random_uniform([2], name="unused")
        return EstimatorSpec(mode, loss=loss, train_op=tf.no_op())

    wrapped = sketching_model_fn(model_fn, capture, lambda: True, lambda ops: described.extend(ops))
    with tf.Graph().as_default(), tf.Session() as session:
        spec = wrapped(tf.constant([1.0, 2.0]), None, "train")
        session.run(tf.global_variables_initializer())
        assert session.run(spec.loss) == 6
        assert session.run(tf.global_variables()[0]) == 0
    names = [op.name for op in described]
    assert {"twice", "average", "total"} <= {*names}
    assert not {"later", "after_a_write", "unused", "initial"} & {*names}
    assert not any(name.endswith("never") for name in names)
    number = names.index("twice")
    assert described[number].source.startswith(pathlib.Path(__file__).name)
    (captured,) = capture.flush()
    size = captured[MODEL_OPS]["sketch"][number]
    np.testing.assert_allclose(size, [2 * np.cos(1) + 4 * np.cos(2), np.sqrt(20)])


def test_variables_are_not_sketched_in_their_memory() -> None:
    """The update of a reference variable may come before the sketch; what is read from it stays."""
    described: list[ModelOp] = []

    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        weight = tf.get_variable("weight", [2], use_resource=False)
        resource = tf.get_variable("resource", [2], use_resource=True)
        net = tf.multiply(features * weight, resource, name="net")
        return EstimatorSpec(mode, loss=tf.reduce_sum(net), train_op=weight.assign_add(net))

    wrapped = sketching_model_fn(model_fn, Capture(), lambda: True, described.extend)
    with tf.Graph().as_default():
        wrapped(tf.constant([1.0, 2.0]), None, "train")

    names = {op.name for op in described}
    assert {"mul", "net", "net/ReadVariableOp"} <= names
    assert not {"weight", "weight/read"} & names
