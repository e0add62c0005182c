"""The Keras form removes aliases, and reads configs that functions make."""

from __future__ import annotations

import textwrap

import pytest
import tensorflow as tf

from compat_tests.migrate.test_keras_form import changed, method
from compat_tests.support.whole_forms import migrate_to_keras
from estimator_bridge import errors
from estimator_bridge.migrate import packages
from estimator_bridge.migrate.forms import FORMS
from estimator_bridge.migrate.keras_form.straight.straightening import straight
from tf2_engine import training
from tf2_engine.errors import InvalidSpec

HEAD = "import tensorflow.compat.v1 as tf\nfrom tensorflow.compat.v1 import estimator\n"

STRAIGHTENED: dict[str, tuple[str, str]] = {
    "a module for TensorFlow 1, and one below it": (
        "import tensorflow as top\ntf1 = top.compat.v1\nx = tf1.feature_column.numeric_column('x')",
        "import tensorflow as top\nx = tf.feature_column.numeric_column('x')",
    ),
    "the tensors of an iterator": (
        """\
        def f(params):
          return g().make_one_shot_iterator().get_next()""",
        """\
        def f(params):
          return g()""",
    ),
}


@pytest.mark.parametrize("what", STRAIGHTENED)
def test_a_detour_is_left_out(what: str) -> None:
    """Other lines stay unchanged, with their comments and line numbers."""
    before, after = (HEAD + textwrap.dedent(each) + "\n" for each in STRAIGHTENED[what])
    result = straight(before, "it")
    assert result.text == after
    old, new = before.splitlines(), result.text.splitlines()
    assert len(result.lines) == len(new)
    for number, line in zip(result.lines, new, strict=True):
        if line in old:
            assert old[number - 1] == line or old.count(line) > 1


def test_a_name_that_is_bound_twice_stays() -> None:
    source = f"{HEAD}fc = tf.feature_column\nfc = g\nfc.numeric_column('x')\n"
    assert straight(source, "it").text == source


CONFIGS = {
    "two uses": ("def config(it):\n  return estimator.tpu.RunConfig(it)\nconfig(1)\n", "'a'"),
    "statements": (
        "def config(it):\n  it += 'a'\n  return estimator.tpu.RunConfig(it)\n",
        "'a'",
    ),
    "a default": ("def config(it, b=1):\n  return estimator.tpu.RunConfig(it + b)\n", "'a'"),
    "a computed argument": ("def config(it):\n  return estimator.tpu.RunConfig(it)\n", "f()"),
    "a parameter": ("def config(it):\n  return estimator.tpu.RunConfig(it + '/b')\n", "'a'"),
}
"""For each kind: the function that makes a config, and the argument of its call."""


@pytest.mark.parametrize("what", CONFIGS)
def test_a_config_of_a_function_is_read_if_it_does_nothing_else(what: str) -> None:
    """The function goes, and its arguments take the places of its parameters."""
    function, argument = CONFIGS[what]
    source = changed().replace("use_tpu=False", f"config=config({argument})")
    source = source.replace("model_dir='model', ", "").replace(
        "def model_fn", f"{function}\n\ndef model_fn"
    )
    if what == "a parameter":
        new = migrate_to_keras(source, "it").source
        assert "model.keep_checkpoints('a' + '/b')" in new
        assert "def config" not in new
        return
    with pytest.raises(errors.Untranslatable, match=r"\[keras-config\]"):
        migrate_to_keras(source, "it")


def test_cores_are_not_summed_in_silence() -> None:
    """A class averages over the cores; a TrainerModel gets the call, which refuses sums."""
    step = """\
optimizer = tf.tpu.CrossShardOptimizer(optimizer, reduction=tf.losses.Reduction.SUM)
    train_op = optimizer.minimize(loss)"""
    with pytest.raises(errors.Untranslatable):
        migrate_to_keras(changed(step=step), "it")
    new = packages.rewrite_text(FORMS["keras"], changed(step=step), "it.py").source
    assert "CrossShardOptimizer(optimizer, reduction=tf.losses.Reduction.SUM)" in new
    with pytest.raises(InvalidSpec, match="averaged over all replicas"):
        training.CrossShardOptimizer(None, tf.compat.v1.losses.Reduction.SUM)


def test_a_model_without_labels_takes_features_alone() -> None:
    source = changed().replace("model_fn(features, labels, mode", "model_fn(features, mode")
    source = source.replace("_entropy(labels,", "_entropy(features['label'],")
    text = method(migrate_to_keras(source, "it").source, "train_step")
    assert "features = batch\n" in text
