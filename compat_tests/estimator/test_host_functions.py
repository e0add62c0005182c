"""The arguments that the functions of a spec get if they run on the host."""

from __future__ import annotations

import time
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from estimator_bridge import estimator
from estimator_bridge.runtime.step.model_step import step_of_specs


def _slowly() -> Any:
    return tf.py_func(lambda: time.sleep(0.02), [], [], stateful=True)


def spec_of(train_op: Any, read: Any, seen: list[int]) -> Any:
    """Returns a spec whose host call adds to a list what it is given, some time later."""

    def host_call(value: Any) -> Any:
        with tf.control_dependencies([_slowly()]):
            return tf.py_func(lambda each: seen.append(int(each[0])), [value], [])

    return estimator.tpu.TPUEstimatorSpec(
        "train", loss=tf.constant(0.0), train_op=train_op, host_call=(host_call, [read])
    )


COUNTING = {
    "assign_add": lambda step: tf.assign_add(step, 1),
    "assign": lambda step: tf.assign(step, step + 1),
}


@pytest.mark.parametrize("way", ["host", "engine", "as_estimator_spec"])
@pytest.mark.parametrize("is_resource", [False, True])
@pytest.mark.parametrize("counting", COUNTING)
def test_a_host_call_sees_the_step_before_it_is_counted(
    counting: str, is_resource: bool, way: str
) -> None:
    """A host call sees the step before it is counted, even if its tensor is read late."""
    seen: list[int] = []
    with tf.Graph().as_default():
        with tf.variable_scope(tf.get_variable_scope(), use_resource=is_resource):
            step = tf.train.create_global_step()
        with tf.control_dependencies([_slowly()]):
            read = tf.reshape(step, [1])
        spec = spec_of(COUNTING[counting](step), read, seen)
        if way == "as_estimator_spec":
            estimator_spec = spec.as_estimator_spec()
            hooks, host_ops = estimator_spec.training_hooks, []
        else:
            estimator_spec = step_of_specs("train", [spec], on_engine=way == "engine")
            hooks, host_ops = estimator_spec.hooks, tf.nest.flatten(estimator_spec.host_call or [])
        with tf.train.MonitoredTrainingSession(hooks=hooks) as session:
            for _ in range(2):
                session.run([estimator_spec.train_op, *host_ops])

    assert seen == [0, 1]


def test_a_tensor_of_the_counted_step_stays() -> None:
    seen: list[int] = []
    with tf.Graph().as_default():
        counted = tf.assign_add(tf.train.create_global_step(), 1)
        spec = spec_of(counted, tf.reshape(counted, [1]) + 0, seen)
        estimator_spec = step_of_specs("train", [spec])
        with tf.train.MonitoredTrainingSession(hooks=estimator_spec.hooks) as session:
            for _ in range(2):
                session.run(estimator_spec.train_op)

    assert seen == [1, 2]
