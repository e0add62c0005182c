"""Canned estimators as Keras models: the numbers, and what is refused."""

from __future__ import annotations

import inspect
import json
import os
import pathlib
import subprocess
import sys

import pytest

from compat_tests.programs import canned_as_keras
from compat_tests.support.paths import EXAMPLES
from estimator_bridge import estimator as v1
from estimator_bridge.estimator import v2
from estimator_bridge.migrate import migrate_to_keras
from estimator_bridge.migrate.blockers import Refused
from estimator_bridge.migrate.keras_form.canned_estimators import CLASSES, Canned

GOLDEN = pathlib.Path(__file__).parent / "keras_goldens" / "census.txt"

# Eight steps, of which each rounds an element of a variable, or of what a metric is computed
# from, up to 32 times: see docs/numerics.md.
ROUNDINGS = canned_as_keras.END - canned_as_keras.BEGIN
TOLERANCE = ROUNDINGS * 32 * 2.0**-24


def census() -> str:
    """Returns the Keras form of the census example."""
    return migrate_to_keras((EXAMPLES / "census" / "train.py").read_text(), "train.py").source


def test_the_census_is_a_keras_model() -> None:
    """As `python -m compat_tests.migrate.test_canned_as_keras` has recorded it."""
    assert census() == GOLDEN.read_text()
    assert migrate_to_keras(GOLDEN.read_text(), "train.py").source == GOLDEN.read_text()


@pytest.mark.parametrize("name", canned_as_keras.NAMES)
def test_every_kind_is_carried(name: str) -> None:
    """The API decides the loss, the rates and the names in checkpoints."""
    text = migrate_to_keras(canned_as_keras.source(name), "train.py").source
    assert ("{keras_slot}" in text) == name.endswith("v2")
    assert "tf.compat.v1" not in text
    assert "tf.feature_column" not in text


BLOCKED = {
    "optimizer='RMSProp'": "keras-optimizer",
    "optimizer=make_optimizer": "keras-optimizer",
    "optimizer=tf.keras.optimizers.legacy.Adam(amsgrad=True)": "keras-argument",
    "optimizer=tf.keras.optimizers.legacy.Adagrad(0.1, epsilon=0.1)": "keras-argument",
    "optimizer='Ftrl'": "keras-optimizer",
    "warm_start_from='other'": "keras-estimator-argument",
    "n_classes=count": "keras-argument",
    "batch_norm=is_wide": "keras-argument",
    "loss_reduction=tf.losses.Reduction.NONE": "keras-loss",
    "config=tf.estimator.RunConfig(train_distribute=strategy)": "keras-estimator-argument",
}

BLOCKED_PROGRAM = """\
import tensorflow as tf


def main(count, is_wide, strategy):
  a = tf.feature_column.categorical_column_with_identity('a', 3)
  job = tf.estimator.DNNClassifier(
      [8], [tf.feature_column.embedding_column(a, 2)], ARGUMENT)
  job.train(lambda: tf.data.Dataset.from_tensors(({'a': [[1]]}, [1])))
"""


@pytest.mark.parametrize("argument", BLOCKED)
def test_what_is_not_carried_is_refused_by_name(argument: str) -> None:
    """With the line of the call."""
    with pytest.raises(Refused) as caught:
        migrate_to_keras(BLOCKED_PROGRAM.replace("ARGUMENT", argument), "train.py")
    assert [each.rule for each in caught.value.blockers] == [BLOCKED[argument]]
    assert {each.line for each in caught.value.blockers} <= {6, 7}


def test_all_of_it_is_refused_at_once() -> None:
    """Arguments, inputs and hooks."""
    argument = "optimizer='RMSProp', warm_start_from='other'"
    program = BLOCKED_PROGRAM.replace("ARGUMENT", argument).replace(
        "job.train(lambda: tf.data.Dataset.from_tensors(({'a': [[1]]}, [1])))",
        "job.train(tf.compat.v1.estimator.inputs.numpy_input_fn({}), hooks=[])",
    )
    with pytest.raises(Refused) as caught:
        migrate_to_keras(program, "train.py")
    assert [each.rule for each in caught.value.blockers] == [
        *("keras-estimator-argument", "keras-optimizer", "keras-argument", "keras-input-fn")
    ]


HEADS = {
    "Classifier": ("BinaryClassHead", "weight_column='w', label_vocabulary=['n', 'y']", ""),
    "Regressor": (
        "RegressionHead",
        "label_dimension=2, loss_reduction=tf.losses.Reduction.SUM",
        "",
    ),
    "Classifier of three": ("MultiClassHead", "3, label_vocabulary=['a', 'b', 'c']", "n_classes="),
}
"""Estimators by the head that they have, its arguments, and the name of the first of them."""

PARTS = {
    "DNN": "hidden_units=[2], feature_columns=[a], optimizer='SGD', dropout=0.1",
    "Linear": "feature_columns=[a], optimizer='Adam', sparse_combiner='mean'",
    "DNNLinearCombined": (
        "linear_feature_columns=[a], dnn_feature_columns=[a], dnn_hidden_units=[2]"
    ),
}


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("model", PARTS)
def test_an_estimator_with_a_head_becomes_what_has_this_head(model: str, kind: str) -> None:
    """To the letter: a head in the call or behind a name, and a class with it."""
    head, of_head, first = HEADS[kind]
    head_call = f"tf.estimator.{head}({of_head})"
    programs = [
        f"job = tf.estimator.{model}Estimator({head_call}, {PARTS[model]})",
        f"head = {head_call}\njob = tf.estimator.{model}Estimator(head=head, {PARTS[model]})",
        f"job = tf.estimator.{model}{kind.split()[0]}({PARTS[model]}, {first}{of_head})",
    ]
    texts = [
        migrate_to_keras(f"{HEAD_PROGRAM}{each}\njob.train(rows, steps=1)\n", "train.py").source
        for each in programs
    ]
    assert texts[0] == texts[1] == texts[2]
    assert f"self.head = {head}(" in texts[0]


HEAD_PROGRAM = """\
import tensorflow as tf

a = tf.feature_column.numeric_column('a')
rows = lambda: tf.data.Dataset.from_tensors(({'a': [[1.]], 'w': [1.]}, [[1.]]))
"""

OTHER_HEADS = {
    "tf.estimator.DNNEstimator(tf.estimator.MultiLabelHead(3), [2], [a])": "keras-estimator-class",
    "tf.estimator.LinearEstimator(make_head(), [a])": "keras-estimator-class",
    "tf.compat.v1.estimator.LinearEstimator(tf.estimator.BinaryClassHead(), [a])": (
        "keras-estimator-class"
    ),
    "tf.estimator.LinearEstimator(tf.estimator.BinaryClassHead(thresholds=[.5]), [a])": (
        "keras-estimator-argument"
    ),
    "tf.estimator.LinearEstimator(tf.estimator.RegressionHead(name='price'), [a])": (
        "keras-estimator-argument"
    ),
    "tf.estimator.BaselineRegressor()": "keras-estimator-class",
}


@pytest.mark.parametrize("estimator", OTHER_HEADS)
def test_a_head_that_is_not_carried_is_refused(estimator: str) -> None:
    """Once."""
    with pytest.raises(Refused) as caught:
        migrate_to_keras(f"{HEAD_PROGRAM}job = {estimator}\njob.train(rows, steps=1)\n", "train.py")
    assert [each.rule for each in caught.value.blockers] == [OTHER_HEADS[estimator]]


@pytest.mark.parametrize(
    "canned",
    [
        *(Canned(name, False) for name in CLASSES),
        # The heads of TensorFlow 1's have no names; they are refused.
        *(Canned(name, True) for name in CLASSES if not name.endswith("Estimator")),
    ],
)
def test_arguments_are_those_of_the_estimator(canned: Canned) -> None:
    """In their order, since programs may leave the names out."""
    kind = getattr(v1 if canned.is_v1 else v2, canned.name)
    assert canned.order == [*inspect.signature(kind).parameters]


@pytest.mark.full
def test_a_canned_estimator_and_its_keras_form_go_on_alike(tmp_path: pathlib.Path) -> None:
    """From one converted checkpoint they have the same variables, metrics and predictions.

    All of them: the checkpoints have the same keys, too.
    """
    command = [sys.executable, "-W", "ignore", "-m", canned_as_keras.__name__]
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1"}
    for part in ("old", "new"):
        ran = subprocess.run(
            [*command, part, str(tmp_path)], capture_output=True, text=True, env=environment
        )
        assert ran.returncode == 0, ran.stderr[-4000:]
    results = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert [each["name"] for each in results] == canned_as_keras.NAMES
    for each in results:
        (largest, name), *_ = each["worst"]
        assert largest <= TOLERANCE, (each["name"], name, largest)
        assert each["moved"] > 3, each["name"]


if __name__ == "__main__":
    GOLDEN.write_text(census())
