"""The Keras form removes aliases, inlines wrappers and functions called once."""

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
    "a wrapper that is a condition": (
        """\
        wrap = tf.tpu.CrossShardOptimizer if USE_TPU else (lambda o: o)
        wrap(tf.train.AdamOptimizer()).minimize(loss)""",
        "tf.train.AdamOptimizer().minimize(loss)",
    ),
    "a wrapper that is a function": (
        """\
        def wrapped(optimizer):
          if USE_TPU:
            return tf.tpu.CrossShardOptimizer(optimizer)
          return optimizer
        wrapped(tf.train.AdamOptimizer()).minimize(loss)""",
        "tf.train.AdamOptimizer().minimize(loss)",
    ),
    "a wrapped optimizer": (
        "optimizer = tf.tpu.CrossShardOptimizer(\n    tf.train.AdamOptimizer())",
        "optimizer = (tf.train.AdamOptimizer()\n)",
    ),
    "the tensors of an iterator": (
        """\
        def f(params):
          return g().make_one_shot_iterator().get_next()""",
        """\
        def f(params):
          return g()""",
    ),
    "a loss that is computed where it is minimized": (
        "tf.train.AdamOptimizer().minimize(loss + 1.)",
        "total_loss = loss + 1.\ntf.train.AdamOptimizer().minimize(total_loss)",
    ),
    "a train_op of a function": (
        """\
        def train(loss, rate):
          # Why it is Adam.
          optimizer = tf.train.AdamOptimizer(rate)
          return optimizer.minimize(loss)
        def model_fn(mode, total):
          return estimator.EstimatorSpec(mode, train_op=train(total, 0.1))""",
        """\
        def model_fn(mode, total):
          # Why it is Adam.
          optimizer = tf.train.AdamOptimizer(0.1)
          train_op = optimizer.minimize(total)
          return estimator.EstimatorSpec(mode, train_op=train_op)""",
    ),
    "a function that ends in a `with`": (
        """\
        def train(loss):
          with tf.control_dependencies([loss]):
            return tf.train.AdamOptimizer().minimize(loss)
        def model_fn(mode, loss):
          return estimator.EstimatorSpec(mode, train_op=train(loss))""",
        """\
        def model_fn(mode, loss):
          with tf.control_dependencies([loss]):
            train_op = tf.train.AdamOptimizer().minimize(loss)
          return estimator.EstimatorSpec(mode, train_op=train_op)""",
    ),
    "names of the function that the caller has too": (
        """\
        def train(loss):
          loss += 1.
          step = tf.train.get_global_step()
          return tf.train.AdamOptimizer().minimize(loss, step)
        def model_fn(mode, loss):
          step = 3
          train_op = train(loss)
          return estimator.EstimatorSpec(mode, loss=loss + step, train_op=train_op)""",
        """\
        def model_fn(mode, loss):
          step = 3
          loss_2 = loss
          loss_2 += 1.
          step_2 = tf.train.get_global_step()
          train_op = tf.train.AdamOptimizer().minimize(loss_2, step_2)
          return estimator.EstimatorSpec(mode, loss=loss + step, train_op=train_op)""",
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
    "the same spec with and without a TPU": (
        """\
        def model_fn(mode, loss):
          if USE_TPU:
            return estimator.tpu.TPUEstimatorSpec(mode, loss=loss)
          return estimator.EstimatorSpec(mode=mode, loss=loss)""",
        """\
        def model_fn(mode, loss):
          return estimator.EstimatorSpec(mode=mode, loss=loss)""",
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
    "a sum over cores": (
        "optimizer = tf.tpu.CrossShardOptimizer(f(), reduction=tf.losses.Reduction.SUM)"
    ),
    "specs that differ": """\
        def model_fn(mode, loss):
          if USE_TPU:
            return estimator.tpu.TPUEstimatorSpec(mode, loss=2. * loss)
          return estimator.EstimatorSpec(mode=mode, loss=loss)""",
    "a function that is called twice": """\
        def train(loss):
          return tf.train.AdamOptimizer().minimize(loss)
        a, b = train(x), train(y)""",
    "a function that is passed on": """\
        def train(loss):
          return tf.train.AdamOptimizer().minimize(loss)
        f(train)""",
    "a call that may not happen": """\
        def train(loss):
          return tf.train.AdamOptimizer().minimize(loss)
        train_op = train(loss) if USE_TPU else None""",
    "a call in a loop of its own": """\
        def train(loss):
          return tf.train.AdamOptimizer().minimize(loss)
        ops = [train(loss) for loss in losses]""",
    "two ways out": """\
        def train(loss):
          if USE_TPU:
            return None
          return tf.train.AdamOptimizer().minimize(loss)
        train_op = train(loss)""",
    "a function that calls itself": """\
        def train(loss):
          train_op = tf.train.AdamOptimizer().minimize(loss)
          return train(loss)""",
    "a name of the module that the caller hides": """\
        rate = 0.1
        def train(loss):
          return tf.train.AdamOptimizer(rate).minimize(loss)
        def model_fn(loss, rate):
          return train(loss)""",
    "a default value": """\
        def train(loss, rate=0.1):
          return tf.train.AdamOptimizer(rate).minimize(loss)
        train_op = train(loss)""",
    "an argument that is computed": """\
        def train(loss):
          return tf.train.AdamOptimizer().minimize(loss)
        train_op = train(f() + g())""",
    "a function that trains nothing": """\
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
    lines = changed(step="train_op = train(loss)").splitlines()
    where = lines.index("def model_fn(features, labels, mode, params):")
    function = ["def train(loss):", "  tf.add_to_collection('x', loss)"]
    function += ["  return tf.train.AdamOptimizer(0.1).minimize(loss)", "", ""]
    source = "\n".join([*lines[:where], *function, *lines[where:]])
    with pytest.raises(errors.Untranslatable, match=rf"line {where + 2}: \[keras-no-counterpart\]"):
        migrate_to_keras(source, "it")


def test_what_a_loss_is_computed_by_is_on_the_tape() -> None:
    """Loss terms of the training have gradients; other statements stay outside the tape."""
    step = """\
decay = tf.add_n([tf.nn.l2_loss(v) for v in tf.trainable_variables()])
    loss += 0.1 * decay
    rate = 2. * loss
    train_op = optimizer.minimize(loss)"""
    text = method(migrate_to_keras(changed(step=step), "it").source, "train_step")
    on_tape, _, below = text.partition("with tf.GradientTape() as tape:\n")[2].partition("\n    r")
    assert "loss += 0.1 * decay" in on_tape
    assert below.startswith("ate = 2.0 * loss")
    assert "self.minimize(loss, tape)" in below


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
