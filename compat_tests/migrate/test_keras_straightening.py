"""The Keras form removes aliases, and inlines functions that make a config."""

from __future__ import annotations

import textwrap

import pytest

from compat_tests.migrate.test_keras_form import changed, method
from compat_tests.support.whole_forms import migrate_to_keras
from estimator_bridge import errors
from estimator_bridge.migrate.keras_form.straight.straightening import straight

HEAD = "import tensorflow.compat.v1 as tf\nfrom tensorflow.compat.v1 import estimator\n"

STRAIGHTENED: dict[str, tuple[str, str]] = {
    "a module under another name": (
        "fc = tf.feature_column\nx = fc.numeric_column('x')",
        "x = tf.feature_column.numeric_column('x')",
    ),
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
    "a config of a function": (
        """\
        def config(folder):
          return estimator.tpu.RunConfig(model_dir=folder)
        def make(path):
          return estimator.tpu.TPUEstimator(config=config(path))""",
        """\
        def make(path):
          config_2 = estimator.tpu.RunConfig(model_dir=path)
          return estimator.tpu.TPUEstimator(config=config_2)""",
    ),
    "names of the function that the caller has too": (
        """\
        def config(folder):
          # Where it is.
          folder += '/it'
          steps = 3
          return estimator.RunConfig(folder, steps)
        def make(folder):
          steps = 4
          return f(config(folder), steps)""",
        """\
        def make(folder):
          steps = 4
          folder_2 = folder
          # Where it is.
          folder_2 += '/it'
          steps_2 = 3
          of_config = estimator.RunConfig(folder_2, steps_2)
          return f(of_config, steps)""",
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


KEPT = {
    "a name that is bound twice": "fc = tf.feature_column\nfc = g\nfc.numeric_column('x')",
    "a function that is called twice": """\
        def config():
          return estimator.RunConfig()
        a, b = config(), config()""",
    "a function that is passed on": """\
        def config():
          return estimator.RunConfig()
        f(config)""",
    "a call that may not happen": """\
        def config():
          return estimator.RunConfig()
        a = config() if USE_TPU else None""",
    "a call in a loop of its own": """\
        def config(name):
          return estimator.RunConfig(name)
        a = [config(name) for name in names]""",
    "two ways out": """\
        def config():
          if USE_TPU:
            return None
          return estimator.RunConfig()
        a = config()""",
    "a function that calls itself": """\
        def config():
          a = estimator.RunConfig()
          return config()""",
    "a name of the module that the caller hides": """\
        folder = 'it'
        def config():
          return estimator.RunConfig(folder)
        def make(folder):
          return config()""",
    "a default value": """\
        def config(name, folder='it'):
          return estimator.RunConfig(folder + name)
        a = config('a')""",
    "an argument that is computed": """\
        def config(name):
          return estimator.RunConfig(name)
        a = config(f() + g())""",
    "a function that makes no config": """\
        def layers(features):
          return tf.layers.dense(features, 1)
        net = layers(features)""",
}


@pytest.mark.parametrize("what", KEPT)
def test_what_could_mean_something_else_stays(what: str) -> None:
    """Statements whose order or place may matter are not moved."""
    source = HEAD + textwrap.dedent(KEPT[what]) + "\n"
    assert straight(source, "it").text == source


def test_messages_have_the_lines_of_the_file() -> None:
    """A blocker in an inlined function names the line in the function."""
    lines = changed().replace("use_tpu=False", "config=config()").splitlines()
    where = lines.index("def model_fn(features, labels, mode, params):")
    function = ["def config():", "  tf.add_to_collection('x', 1)"]
    function += ["  return estimator.tpu.RunConfig()", "", ""]
    source = "\n".join([*lines[:where], *function, *lines[where:]])
    with pytest.raises(errors.Untranslatable, match=rf"line {where + 2}: \[keras-no-counterpart\]"):
        migrate_to_keras(source, "it")


def test_cores_are_not_summed_in_silence() -> None:
    """The new program averages over the cores; other reductions are refused."""
    step = """\
optimizer = tf.tpu.CrossShardOptimizer(optimizer, reduction=tf.losses.Reduction.SUM)
    train_op = optimizer.minimize(loss)"""
    with pytest.raises(errors.Untranslatable, match="CrossShardOptimizer"):
        migrate_to_keras(changed(step=step), "it")


@pytest.mark.parametrize(
    "here",
    [
        "average = tf.train.ExponentialMovingAverage(0.9)",
    ],
)
def test_what_would_fail_when_it_runs_is_refused(here: str) -> None:
    """Variables outside layers are refused."""
    with pytest.raises(errors.Untranslatable):
        migrate_to_keras(changed(here), "it")


def test_a_model_without_labels_takes_features_alone() -> None:
    """Without labels, the new input_fn returns features alone."""
    source = changed().replace("model_fn(features, labels, mode", "model_fn(features, mode")
    source = source.replace("_entropy(labels,", "_entropy(features['label'],")
    text = method(migrate_to_keras(source, "it").source, "train_step")
    assert "features = batch\n" in text
