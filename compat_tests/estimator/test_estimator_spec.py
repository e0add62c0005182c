"""`EstimatorSpec` and `TPUEstimatorSpec` accept, refuse and fill in the same as stock's.

Oracle: stock's own classes, if TensorFlow has them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from compat_tests.conftest import HAS_STOCK
from compat_tests.support import legacy_specs
from estimator_bridge import errors, estimator
from estimator_bridge.legacy import estimator_spec

if HAS_STOCK:
    from compat_tests.support import stock


@pytest.mark.stock
@pytest.mark.parametrize("name", ["EstimatorSpec", "TPUEstimatorSpec"])
def test_arguments_and_fields_are_those_of_stock(name: str) -> None:
    """Names, order and defaults of arguments are stock's, and so are the fields."""
    ours, theirs = getattr(estimator_spec, name), getattr(stock.CLASSES, name)
    assert legacy_specs.arguments(ours) == legacy_specs.arguments(theirs)
    assert ours._fields == theirs._fields


def test_modes_are_the_words_of_stock() -> None:
    keys = estimator_spec.ModeKeys
    assert (keys.TRAIN, keys.EVAL, keys.PREDICT) == ("train", "eval", "infer")


def _model(c: Any, mode: str = "train", **settings: Any) -> Any:
    fields = {"loss": tf.constant([2.0]), "train_op": tf.no_op(), **settings}
    return c.TPUEstimatorSpec(mode, **fields)


def _metric(values: Any) -> Any:
    return {"mean": tf.compat.v1.metrics.mean(values)}


BAD_MODELS: dict[str, tuple[type[Exception], Callable[[Any], Any], str]] = {
    "no loss": (ValueError, lambda c: _model(c, loss=None), "`loss`"),
    "no loss in evaluation": (ValueError, lambda c: _model(c, "eval", loss=None), "`loss`"),
    "no train_op": (ValueError, lambda c: _model(c, train_op=None), "`train_op`"),
    "no predictions": (ValueError, lambda c: c.TPUEstimatorSpec("infer"), "`predictions`"),
    "loss shape": (ValueError, lambda c: _model(c, loss=tf.zeros([2])), r"\(2,\)"),
    "loss type": (TypeError, lambda c: _model(c, loss=1.0), "1.0"),
    "train_op type": (TypeError, lambda c: _model(c, train_op="go"), "'go'"),
    "predictions type": (
        TypeError,
        lambda c: _model(c, predictions={"p": 1}),
        r"predictions\[p\] must be Tensor",
    ),
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


def test_predictions_are_exported() -> None:
    with tf.Graph().as_default():
        spec = estimator_spec.TPUEstimatorSpec("infer", predictions={"p": tf.zeros([3])})
    (output,) = spec.export_outputs.values()
    assert list(output.outputs) == ["p"]


@pytest.mark.parametrize("named", [True, False], ids=["dict", "list"])
def test_metrics_are_made_on_the_host(named: bool) -> None:
    """`as_estimator_spec` calls the metric function with the tensors, by name or position."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        values = tf.constant([1.0, 3.0])
        tensors = {"values": values} if named else [values]
        spec = _model(
            estimator_spec, mode="eval", eval_metrics=(_metric, tensors)
        ).as_estimator_spec()
        value, update = spec.eval_metric_ops["mean"]
        session.run(tf.compat.v1.local_variables_initializer())
        session.run(update)
        assert session.run(value) == 2.0


def test_a_host_call_runs_every_step() -> None:
    with tf.Graph().as_default():
        tf.compat.v1.train.create_global_step()
        seen = tf.compat.v1.get_variable("seen", [], initializer=tf.compat.v1.zeros_initializer())
        spec = _model(
            estimator_spec, host_call=(lambda value: [seen.assign_add(value[0])], [tf.ones([1])])
        )
        hooks = spec.as_estimator_spec().training_hooks
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            for _ in range(3):
                session.run(spec.train_op)
            assert session.run_step_fn(lambda step_context: step_context.session.run(seen)) == 3.0
