"""The example programs run unedited through the command line, with the tables on the engine."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.support import fresh
from compat_tests.support.paths import EXAMPLES

# Few steps: that a program runs, not what it learns.
QUICK = {
    "two_tower": ("--train_steps=3", "--eval_steps=1", "--tpu=not-there", "--num_shards=2"),
    "wide_and_deep": (
        *("--train_steps=4", "--save_checkpoints_steps=2", "--eval_steps=1"),
        *("--data_dir={}/data", "--tpu=not-there"),
    ),
    "sequence": ("--train_steps=2", "--eval_steps=1", "--batch_size=8", "--num_shards=2"),
    "dict_config": (
        *("--train_steps=2", "--eval_steps=1", "--batch_size=8", "--tpu_name=not-there"),
        "--iterations_per_loop=1m",
    ),
    "warm_start": ("--pretrain_steps=2", "--train_steps=2", "--batch_size=8", "--num_shards=2"),
}

# The steps at which programs evaluate; `train_and_evaluate` leaves out the first checkpoint.
EVALUATED = {"two_tower": [3], "wide_and_deep": [2, 4]}

# The output that `sample.npz` holds beside the requests.
SERVED = {
    "two_tower": "score",
    "wide_and_deep": "probability",
    "sequence": "probabilities",
    "dict_config": "rating",
    "warm_start": "probability",
}


def run(name: str, model_dir: pathlib.Path, *arguments: str) -> tuple[dict[str, float], str]:
    """Returns the metrics that a program wrote, and what it printed and logged."""
    ran = fresh.module(
        *("estimator_bridge", "run", EXAMPLES / name / "train.py", f"--model_dir={model_dir}"),
        *("--use_tpu",) * (name != "census"),
        *(argument.format(model_dir) for argument in arguments),
        check=True,
    )
    return json.loads((model_dir / "metrics.json").read_text()), ran.stdout + ran.stderr


def assert_on_the_engine(log: str) -> None:
    """Checks that a program has said what its tables are on, once."""
    assert log.count("the host engine takes its place") == 1
    assert log.count("use_tpu=True: the TF2 embedding engine holds the tables") == 1


@pytest.mark.parametrize(
    "name",
    [
        "dict_config",
        *(pytest.param(name, marks=pytest.mark.full) for name in SERVED if name != "dict_config"),
    ],
)
def test_what_an_example_exports_predicts_the_same(name: str, tmp_path: pathlib.Path) -> None:
    """An example trains, evaluates and exports.

    The SavedModel answers the sample of requests that lies in it as `predict` did.
    """
    metrics, log = run(name, tmp_path, *QUICK[name])
    assert metrics["loss"] > 0
    if name in EVALUATED:
        steps = [step for step in range(10) if f"Saving dict for global step {step}:" in log]
        assert steps == EVALUATED[name]
        assert metrics["global_step"] == steps[-1]
    if any("not-there" in argument for argument in QUICK[name]):
        assert_on_the_engine(log)

    (exported,) = (tmp_path / "export").iterdir()
    sample = np.load(exported / "sample.npz")
    requests = {key: tf.constant(sample[key]) for key in sample.files if key != SERVED[name]}
    serve = tf.saved_model.load(str(exported)).signatures["serving_default"]
    # The ops differ: activations come from a gather or a fused op; a network of four layers.
    np.testing.assert_allclose(
        serve(**requests)[SERVED[name]], sample[SERVED[name]], rtol=1e-5, atol=1e-6
    )


@pytest.mark.full
@pytest.mark.parametrize(
    "name, options, metric, at_least",
    [
        # By chance it would be 5 in 128.
        ("two_tower", (), "recall_at_5", 0.5),
        ("wide_and_deep", ("--data_dir={}/data",), "auc", 0.7),
        # By chance one in eight.
        ("sequence", (), "accuracy", 0.5),
        # By chance a half.
        ("warm_start", (), "auc", 0.7),
        ("census", ("--data_dir={}/data",), "auc", 0.9),
    ],
)
def test_an_example_learns(
    name: str, options: tuple[str, ...], metric: str, at_least: float, tmp_path: pathlib.Path
) -> None:
    metrics, _ = run(name, tmp_path, *options)

    assert metrics[metric] > at_least


@pytest.mark.full
def test_a_canned_estimator_runs(tmp_path: pathlib.Path) -> None:
    """The census trains, evaluates each checkpoint and exports, unedited; the export answers."""
    few = ("--train_steps=4", "--save_checkpoints_steps=2")
    metrics, _ = run("census", tmp_path, "--data_dir={}/data", *few)
    assert metrics["global_step"] == 4
    assert {"accuracy", "auc", "average_loss", "label/mean"} <= set(metrics)

    (saved,) = (tmp_path / "export" / "income").iterdir()
    answer = tf.saved_model.load(str(saved)).signatures["serving_default"]
    texts = {
        "workclass": "state",
        "education": "master",
        "status": "single",
        "occupation": "o7",
    }
    feature = {
        key: tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))
        for key, text in texts.items()
    }
    for key, number in (("age", 33.0), ("hours", 40.0)):
        feature[key] = tf.train.Feature(float_list=tf.train.FloatList(value=[number]))
    example = tf.train.Example(features=tf.train.Features(feature=feature))
    served = answer(inputs=tf.constant([example.SerializeToString()] * 2))

    assert served["classes"].numpy().tolist() == [[b"less", b"more"]] * 2
    np.testing.assert_allclose(tf.reduce_sum(served["scores"], axis=1), 1.0, rtol=1e-5)
