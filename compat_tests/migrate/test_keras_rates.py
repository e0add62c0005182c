"""Learning rates in the Keras form become schedules, or stay computed in the step."""

from __future__ import annotations

import ast

import pytest

from compat_tests.migrate.keras_rule_program import whole
from compat_tests.support.whole_forms import keras_form, migrate_to_keras

MODEL_FN = """\
TOP
  logits = tf.layers.dense(net, 1)
  loss = tf.losses.sigmoid_cross_entropy(labels, logits)
  if mode == estimator.ModeKeys.TRAIN:
    RATE
    return estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=step)
  return estimator.tpu.TPUEstimatorSpec(mode, loss=loss)
"""
ADAM = "step = tf.train.AdamOptimizer(rate).minimize(loss, tf.train.get_global_step())"


def program(top: str, rate: list[str]) -> str:
    lines = "\n    ".join([*rate, ADAM])
    text = whole(MODEL_FN.replace("RATE", lines).replace("TOP\n", top + "\n" if top else ""))
    return text.replace("params={", "params={'size': 8, ")


def function_of(source: str, name: str) -> ast.FunctionDef:
    functions = [each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.FunctionDef)]
    return next(each for each in functions if each.name == name)


@pytest.mark.parametrize("name", ["rate", "size", "s"])
def test_a_schedule_may_have_the_name_of_a_parameter(name: str) -> None:
    """The optimizer takes the schedule even if `params` has a key of the same name."""
    schedule = f"{name} = tf.train.cosine_decay(params['size'], tf.train.get_global_step(), 9)"
    text = program("", [schedule]).replace("AdamOptimizer(rate)", f"AdamOptimizer({name})")
    init = ast.unparse(function_of(migrate_to_keras(text, "it").source, "__init__"))

    assert f"{name} = tf.keras.optimizers.schedules.CosineDecay(size, 9)" in init
    assert f"Adam({name}, epsilon=1e-08)" in init


def test_a_local_name_is_not_the_parameter_of_its_name() -> None:
    local = "size = params['size'] / 2"
    text = program("", ["rate = 0.1"])
    text = text.replace("  logits = tf", f"  {local}\n  net = net * size\n  logits = tf")
    lines = ast.unparse(function_of(migrate_to_keras(text, "it").source, "call"))

    assert "size = self.size / 2" in lines
    assert "* size" in lines


@pytest.mark.parametrize(
    "rate, code",
    [
        (["rate = tf.minimum(0.1, loss)"], "rate = tf.minimum(0.1, loss)"),
        (["scale = tf.size(logits)", "rate = 0.1 / scale"], "scale = tf.size(logits)"),
        (
            ["rate = tf.train.cosine_decay(0.1, tf.train.get_global_step(), 9) * 2"],
            "global_step(), 9) * 2",
        ),
        (
            ["s = tf.train.get_global_step()", "rate = 1. / tf.cast(s, tf.float32)"],
            "cast(s, tf.flo",
        ),
        (["rate = warmed(0.1)"], "return rate * tf.cast(tf.train.get_global_step(), tf.float32)"),
    ],
)
def test_a_rate_that_no_schedule_has_is_computed_in_the_step(rate: list[str], code: str) -> None:
    """The model_fn stays a function, and its optimizer takes the tensor."""
    helper = "def warmed(rate):\n  return rate * tf.cast(tf.train.get_global_step(), tf.float32)\n"
    text = program("", rate).replace("def model_fn", f"{helper}\ndef model_fn")
    new = keras_form(text, "it").source

    assert code in new
    assert "model = TrainerModel(" in new
