"""`estimator-bridge run`, and the names that it puts in the place of stock's."""

from __future__ import annotations

import pathlib

import pytest
import tensorflow as tf

from compat_tests.support import fresh
from estimator_bridge.cli import main

PROGRAM = """
import sys
import tensorflow.compat.v1 as tf
from tensorflow.compat.v1 import estimator as tf_estimator
import beside

tf.disable_v2_behavior()
column = tf.tpu.experimental.embedding_column(
    tf.feature_column.categorical_column_with_identity("word", 10), 2, combiner="sum")


def input_fn(params):
    rows = tf.range(params["batch_size"], dtype=tf.int64)
    ids = tf.SparseTensor(tf.stack([rows, tf.zeros_like(rows)], 1), rows, [params["batch_size"], 1])
    return tf.data.Dataset.from_tensors(({"word": ids}, tf.ones([4, 1]))).repeat()


def model_fn(features, labels, mode, params):
    logits = tf.layers.dense(tf.keras.layers.DenseFeatures([column])(features), 1)
    loss = tf.losses.mean_squared_error(labels, logits)
    optimizer = tf.train.AdamOptimizer(0.1)
    if params["use_tpu"]:
        optimizer = tf.tpu.CrossShardOptimizer(optimizer)
    train_op = optimizer.minimize(loss, tf.train.get_global_step())
    return tf_estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


job = tf_estimator.tpu.TPUEstimator(
    model_fn,
    use_tpu=sys.argv[2] == "tpu",
    config=tf_estimator.tpu.RunConfig(model_dir=sys.argv[1]),
    train_batch_size=4,
    embedding_config_spec=tf_estimator.tpu.experimental.EmbeddingConfigSpec(
        feature_columns=[column],
        clipping_limit=0.5,
        optimization_parameters=tf.tpu.experimental.AdagradParameters(0.1)))
job.train(input_fn, steps=2)
print(beside.NAME, __name__, job.get_variable_value("global_step"))
"""


@pytest.mark.parametrize("use_tpu", ["tpu", "host"])
def test_a_program_runs_unedited(use_tpu: str, tmp_path: pathlib.Path) -> None:
    """A legacy script runs as it is, with its arguments and its folder; two lines say how."""
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    ran = fresh.module("estimator_bridge", "run", script, tmp_path / "job", use_tpu)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "beside __main__ 2"
    assert f"running {script} on TensorFlow {tf.__version__.rsplit('.', 1)[0]}" in ran.stderr
    if use_tpu == "tpu":
        assert ran.stderr.count("estimator-bridge: use_tpu=True: the TF2 embedding engine") == 1
        assert "`clipping_limit`=0.5 is ignored, as in stock." in ran.stderr
    else:
        assert ran.stderr.count("estimator-bridge: use_tpu=False: no embedding engine") == 1


@pytest.mark.parametrize(
    "options, message",
    [
        (["--stock", "--cores", "4"], "--cores 4: stock's estimator runs on one core here"),
        *(
            (
                [option, "--arithmetic", "sparsecore"],
                f"--arithmetic sparsecore: {option} has the embedding hard",
            )
            for option in ("--stock", "--software-tpu")
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    options: list[str],
    message: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Stock emulates no cores, and neither it nor a software TPU has SparseCores' arithmetic."""
    script = tmp_path / "job.py"
    script.write_text("raise AssertionError\n")

    assert main.main(["run", *options, str(script)]) == 2
    assert message in capsys.readouterr().err
