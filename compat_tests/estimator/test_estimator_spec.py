"""`EstimatorSpec` and `TPUEstimatorSpec` accept, refuse and fill in the same as stock's.

Also the arguments that the functions of a spec get if they run on the host. Oracle: stock's own
classes, if TensorFlow has them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from compat_tests.conftest import HAS_STOCK
from compat_tests.support import legacy_specs
from estimator_bridge import errors, estimator
from estimator_bridge.legacy import estimator_spec
from estimator_bridge.runtime.step.model_step import step_of_specs

if HAS_STOCK:
    from compat_tests.support import stock

tf1 = tf.compat.v1


@pytest.mark.stock
@pytest.mark.parametrize("name", ["EstimatorSpec", "TPUEstimatorSpec"])
def test_arguments_and_fields_are_those_of_stock(name: str) -> None:
    """Names, order and defaults of arguments are stock's, and so are the fields."""
    ours, theirs = getattr(estimator_spec, name), getattr(stock.CLASSES, name)
    assert legacy_specs.arguments(ours) == legacy_specs.arguments(theirs)
    assert ours._fields == theirs._fields


def _model(c: Any, mode: str = "train", **settings: Any) -> Any:
    fields = {"loss": tf.constant([2.0]), "train_op": tf.no_op(), **settings}
    return c.TPUEstimatorSpec(mode, **fields)


def _metric(values: Any) -> Any:
    return {"mean": tf1.metrics.mean(values)}


BAD_MODELS: dict[str, tuple[type[Exception], Callable[[Any], Any], str]] = {
    "no loss in evaluation": (ValueError, lambda c: _model(c, "eval", loss=None), "`loss`"),
    "loss shape": (ValueError, lambda c: _model(c, loss=tf.zeros([2])), r"\(2,\)"),
    "loss type": (TypeError, lambda c: _model(c, loss=1.0), "1.0"),
    "train_op type": (TypeError, lambda c: _model(c, train_op="go"), "'go'"),
    "hooks": (TypeError, lambda c: _model(c, training_hooks=["h"]), "'h'"),
    "metrics no pair": (ValueError, lambda c: _model(c, eval_metrics=_metric), "eval_metrics"),
    "metrics of three": (
        *(ValueError, lambda c: _model(c, eval_metrics=(_metric, [], []))),
        "eval_metrics",
    ),
    "metrics no function": (
        *(TypeError, lambda c: _model(c, eval_metrics=("f", []))),
        "eval_metrics.*'f'",
    ),
    "metrics no tensors": (
        *(ValueError, lambda c: _model(c, host_call=(_metric, tf.zeros([2])))),
        "host_call",
    ),
    "metrics count": (
        RuntimeError,
        lambda c: _model(c, eval_metrics=(_metric, [tf.zeros([2])] * 2)),
        "2 tensors.*1 arguments",
    ),
}


@pytest.mark.parametrize("name", BAD_MODELS)
def test_a_bad_model_is_refused_by_name(name: str, namespace: Any) -> None:
    """What a model_fn may not return is refused with stock's built-in type, and ours shows it."""
    kind, call, shown = BAD_MODELS[name]
    with tf.Graph().as_default(), pytest.raises(kind) as caught:
        call(namespace.tpu)
    if namespace is estimator:
        assert isinstance(caught.value, errors.EngineError)
        assert re.search(shown, str(caught.value))
    else:
        assert caught.type is kind


def test_a_loss_of_one_element_becomes_a_scalar() -> None:
    """A loss [1] is reshaped to []; hooks and predictions are filled in."""
    with tf.Graph().as_default():
        spec = _model(estimator_spec)
    assert spec.loss.shape == []
    assert (spec.training_hooks, spec.predictions) == ((), {})


# --- Host calls ----------------------------------------------------------------------------


def _slowly() -> Any:
    return tf1.py_func(lambda: time.sleep(0.02), [], [], stateful=True)


def spec_of(train_op: Any, read: Any, seen: list[int]) -> Any:
    """Returns a spec whose host call adds to a list what it is given, some time later."""

    def host_call(value: Any) -> Any:
        with tf.control_dependencies([_slowly()]):
            return tf1.py_func(lambda each: seen.append(int(each[0])), [value], [])

    return estimator.tpu.TPUEstimatorSpec(
        "train", loss=tf.constant(0.0), train_op=train_op, host_call=(host_call, [read])
    )


COUNTING = {
    "assign_add": lambda step: tf1.assign_add(step, 1),
    "assign": lambda step: tf1.assign(step, step + 1),
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
        with tf1.variable_scope(tf1.get_variable_scope(), use_resource=is_resource):
            step = tf1.train.create_global_step()
        with tf.control_dependencies([_slowly()]):
            read = tf.reshape(step, [1])
        spec = spec_of(COUNTING[counting](step), read, seen)
        if way == "as_estimator_spec":
            made = spec.as_estimator_spec()
            hooks, host_ops = made.training_hooks, []
        else:
            made = step_of_specs("train", [spec], on_engine=way == "engine")
            hooks, host_ops = made.hooks, tf.nest.flatten(made.host_call or [])
        with tf1.train.MonitoredTrainingSession(hooks=hooks) as session:
            for _ in range(2):
                session.run([made.train_op, *host_ops])

    assert seen == [0, 1]


def test_a_tensor_of_the_counted_step_stays() -> None:
    seen: list[int] = []
    with tf.Graph().as_default():
        counted = tf1.assign_add(tf1.train.create_global_step(), 1)
        spec = spec_of(counted, tf.reshape(counted, [1]) + 0, seen)
        made = step_of_specs("train", [spec])
        with tf1.train.MonitoredTrainingSession(hooks=made.hooks) as session:
            for _ in range(2):
                session.run(made.train_op)

    assert seen == [1, 2]
