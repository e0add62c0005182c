"""Canned estimators as Keras models: the numbers, and what is refused."""

from __future__ import annotations

import inspect
import json
import pathlib
import re
import types
from typing import Any

import pytest

from compat_tests.migrate.test_tf2_form_runs import run
from compat_tests.programs import canned_as_keras
from compat_tests.support.paths import EXAMPLES
from compat_tests.support.whole_forms import migrate_to_keras
from estimator_bridge import estimator as v1
from estimator_bridge.estimator import v2
from estimator_bridge.migrate import packages
from estimator_bridge.migrate.blockers import Refused
from estimator_bridge.migrate.forms import FORMS
from estimator_bridge.migrate.keras_form.canned_estimators import CLASSES, Canned
from estimator_bridge.migrate.rewrite_report import left_to_do

GOLDEN = pathlib.Path(__file__).parent / "keras_goldens" / "census.txt"

# Eight steps, each of which rounds an element of a variable, or of a metric's input, up to 32
# times; see docs/numerics.md.
ROUNDINGS = canned_as_keras.END - canned_as_keras.BEGIN
TOLERANCE = ROUNDINGS * 32 * 2.0**-24


def census() -> str:
    return migrate_to_keras((EXAMPLES / "census" / "train.py").read_text(), "train.py").source


def test_the_census_is_a_keras_model() -> None:
    """`python -m compat_tests.migrate.test_canned_as_keras` recorded the expected program."""
    assert census() == GOLDEN.read_text()
    assert migrate_to_keras(GOLDEN.read_text(), "train.py").source == GOLDEN.read_text()


@pytest.mark.parametrize("name", canned_as_keras.NAMES)
def test_every_kind_is_carried(name: str) -> None:
    """The loss, the rates and the checkpoint names depend on the API."""
    text = migrate_to_keras(canned_as_keras.source(name), "train.py").source
    assert ("{keras_slot}" in text) == name.endswith("v2")
    assert "tf.compat.v1" not in text
    assert "tf.feature_column" not in text


BLOCKED = {
    "optimizer=tf.keras.optimizers.legacy.RMSprop(centered=True)": "keras-argument",
    "optimizer=tf.keras.optimizers.legacy.SGD(0.1, momentum)": "keras-optimizer",
    "optimizer=tf.keras.optimizers.legacy.Nadam()": "keras-optimizer",
    "optimizer=make_optimizer": "keras-optimizer",
    "optimizer=tf.keras.optimizers.legacy.Adam(amsgrad=True)": "keras-argument",
    "optimizer=tf.keras.optimizers.legacy.Adagrad(0.1, epsilon=0.1)": "keras-argument",
    "warm_start_from=tf.estimator.WarmStartSettings('a', var_name_to_vocab_info={})": (
        "keras-estimator-argument"
    ),
    "warm_start_from=tf.estimator.WarmStartSettings('a', ['b'])": "keras-estimator-argument",
    "n_classes=count": "keras-argument",
    "batch_norm=is_wide": "keras-argument",
    "loss_reduction=tf.losses.Reduction.NONE": "keras-loss",
    "config=tf.estimator.RunConfig(train_distribute=strategy)": "keras-estimator-argument",
}

BLOCKED_PROGRAM = """\
import tensorflow as tf


def main(count, is_wide, strategy, momentum):
  a = tf.feature_column.categorical_column_with_identity('a', 3)
  job = tf.estimator.DNNClassifier(
      [8], [tf.feature_column.embedding_column(a, 2)], ARGUMENT)
  job.train(lambda: tf.data.Dataset.from_tensors(({'a': [[1]]}, [1])))
"""


@pytest.mark.parametrize("argument", BLOCKED)
def test_what_is_not_carried_is_refused_by_name(argument: str) -> None:
    """The refusal names the line of the call."""
    with pytest.raises(Refused) as caught:
        migrate_to_keras(BLOCKED_PROGRAM.replace("ARGUMENT", argument), "train.py")
    assert [each.rule for each in caught.value.blockers] == [BLOCKED[argument]]
    assert {each.line for each in caught.value.blockers} <= {6, 7}


KEPT = {
    "n_classes=count": ["keras-argument"],
    (
        "optimizer='Nadam', warm_start_from=tf.estimator.WarmStartSettings('a', None))\n"
        "  job.train(input_fn, hooks=[Mine()]"
    ): ["keras-estimator-argument", "keras-optimizer", "keras-hook", "keras-input-fn"],
    "dropout=0.1)\n  other = tf.estimator.LinearClassifier([a]": ["keras-estimators"],
}
"""The estimator's arguments, with code beside it, and the reasons why it stays."""


@pytest.mark.parametrize("argument", KEPT)
def test_an_estimator_that_stays_has_the_reasons_of_its_keras_form(argument: str) -> None:
    """They tell what to change, all at once.

    A canned estimator's own model_fn is no obstacle to that form.
    """
    kept = packages.rewrite_text(
        FORMS["keras"], BLOCKED_PROGRAM.replace("ARGUMENT", argument), "it.py"
    )
    assert [each.split(": ")[1] for each in left_to_do({"it.py": kept})] == KEPT[argument]
    assert "from estimator_bridge import estimator" in kept.source


CARRIED = {
    "batch_norm=False": "optimizer=tf.keras.optimizers.Adagrad(0.001))",
    "optimizer='Adagrad'": "optimizer=tf.keras.optimizers.Adagrad(0.001))",
    "optimizer='Adam'": "optimizer=tf.keras.optimizers.Adam(0.001))",
    "optimizer='SGD'": "optimizer=tf.keras.optimizers.SGD(0.01))",
    "optimizer='RMSProp'": "RuleOptimizer(KerasRMSProp(0.001))",
    "optimizer=tf.keras.optimizers.legacy.RMSprop(0.1, momentum=0.)": (
        "RuleOptimizer(KerasRMSProp(0.1))"
    ),
    "optimizer=tf.keras.optimizers.legacy.RMSprop(0.1, momentum=.5)": (
        "RuleOptimizer(RMSProp(0.1, momentum=.5))"
    ),
    "optimizer=tf.keras.optimizers.legacy.SGD(momentum=.5)": (
        "RuleOptimizer(KerasMomentum(0.01, momentum=.5))"
    ),
    "optimizer=tf.keras.optimizers.legacy.SGD(.1, 0.0, True)": "tf.keras.optimizers.SGD(.1)",
    "optimizer='Ftrl'": "RuleOptimizer(FTRL(0.001))",
    "optimizer=tf.compat.v1.train.RMSPropOptimizer(.1, .8)": (
        "RuleOptimizer(RMSProp(.1, rho=.8, epsilon=1e-10), {'ms': 1.0})"
    ),
    "optimizer=tf.compat.v1.train.MomentumOptimizer(.1, .9, use_nesterov=True, name='m')": (
        "RuleOptimizer(Momentum(.1, momentum=.9, use_nesterov=True))"
    ),
    "optimizer=tf.compat.v1.train.FtrlOptimizer(.1)": "RuleOptimizer(FTRL(.1))",
    "optimizer=tf.compat.v1.train.AdamOptimizer()": (
        "tf.keras.optimizers.Adam(0.001, epsilon=1e-08)"
    ),
    "warm_start_from='other'": "model.warm_start_from('other')",
    (
        "warm_start_from=tf.estimator.WarmStartSettings('a', 'dnn', "
        "var_name_to_prev_var_name={'dnn/b': 'b'})"
    ): "model.warm_start_from('a', names='dnn', old_names={'dnn/b': 'b'})",
}
"""Optimizer arguments of a network with an embedding, and their code in the Keras form."""


@pytest.mark.parametrize("argument", CARRIED)
def test_optimizers_and_starts_are_carried(argument: str) -> None:
    """A rule of the engine is used where current Keras optimizers compute other numbers.

    Those of TensorFlow 1 keep their epsilons and initial slot values.
    """
    program = BLOCKED_PROGRAM.replace("ARGUMENT", argument)
    if "compat.v1" in argument:
        program = program.replace("tf.estimator.DNN", "tf.compat.v1.estimator.DNN")
    assert CARRIED[argument] in migrate_to_keras(program, "train.py").source


def test_ftrl_leaves_weights_of_a_warm_start_as_they_are() -> None:
    """Keras's Ftrl would set weights that occur in no batch to zero."""
    old = f"{HEAD_PROGRAM}job = tf.estimator.LinearClassifier([a]START)\njob.train(rows, steps=1)\n"
    cold, warm = (
        migrate_to_keras(old.replace("START", start), "train.py").source
        for start in ("", ", warm_start_from='other'")
    )
    assert "optimizer=tf.keras.optimizers.Ftrl(0.2))" in cold
    assert "optimizer=RuleOptimizer(FTRL(0.2)))" in warm


HEAD_PROGRAM = """\
import tensorflow as tf

a = tf.feature_column.numeric_column('a')
rows = lambda: tf.data.Dataset.from_tensors(({'a': [[1.]], 'w': [1.]}, [[1.]]))
"""

WRITTEN_HEADS = {
    "BinaryClassHead(thresholds=[.5], name='rich')": (
        "BinaryClassHead(thresholds=[.5], suffix='rich')"
    ),
    "MultiClassHead(3, loss_fn=loss_fn)": "MultiClassHead(3, loss_fn=loss_fn)",
    "MultiLabelHead(3, 'w', [.5], classes_for_class_based_metrics=[1])": (
        "MultiLabelHead(\n"
        "        3,\n"
        "        weight_column='w',\n"
        "        thresholds=[.5],\n"
        "        classes_for_class_based_metrics=[1])"
    ),
    "RegressionHead(inverse_link_fn=tf.exp, loss_reduction='sum')": (
        "RegressionHead(inverse_link_fn=tf.exp, reduction='sum')"
    ),
    "PoissonRegressionHead(2, compute_full_loss=False)": (
        "PoissonRegressionHead(2, compute_full_loss=False)"
    ),
    "LogisticRegressionHead('w')": "LogisticRegressionHead(weight_column='w')",
    (
        "MultiHead([tf.estimator.RegressionHead(name='a'), "
        "tf.estimator.MultiClassHead(3, name='b')], [1., 2.])"
    ): (
        "MultiHead([\n"
        "            RegressionHead(suffix='a'),\n"
        "            MultiClassHead(3, suffix='b')], [1., 2.])"
    ),
}
"""Heads, and their code in the Keras form."""


@pytest.mark.parametrize("head", WRITTEN_HEADS)
def test_heads_are_those_of_the_engine(head: str) -> None:
    """Heads keep all their arguments, in the call or in a variable."""
    function = "def loss_fn(labels, logits):\n  return tf.abs(labels - logits)\n\n"
    text, same = (
        migrate_to_keras(f"{HEAD_PROGRAM}{function}{job}job.train(rows, steps=1)\n", "it").source
        for job in (
            f"job = tf.estimator.BaselineEstimator(tf.estimator.{head})\n",
            f"head = tf.estimator.{head}\njob = tf.estimator.BaselineEstimator(head=head)\n",
        )
    )
    assert text == same
    assert f"    self.head = {WRITTEN_HEADS[head]}\n" in text
    units = {
        "MultiLabelHead": "3, ",
        "MultiClassHead": "3, ",
        "Poisson": "2, ",
        "MultiHead": "1 + 3, ",
    }
    count = next((text for name, text in units.items() if head.startswith(name)), "")
    assert f"    self.baseline = Baseline({count}name='baseline')\n" in text


OTHER_HEADS = {
    "tf.estimator.LinearEstimator(make_head(), [a])": "keras-estimator-class",
    "tf.compat.v1.estimator.LinearEstimator(tf.estimator.BinaryClassHead(), [a])": (
        "keras-estimator-class"
    ),
    "tf.estimator.BaselineEstimator(tf.estimator.MultiHead(heads))": "keras-estimator-class",
    "tf.estimator.BaselineEstimator(tf.estimator.MultiHead([make_head()]))": (
        "keras-estimator-class"
    ),
    "tf.estimator.LinearEstimator(tf.estimator.BinaryClassHead(margin=1.), [a])": (
        "keras-estimator-argument"
    ),
    "tf.compat.v1.estimator.experimental.KMeans(2)": "keras-estimator-class",
    "tf.estimator.experimental.RNNEstimator(make_head(), [a], units=[2])": "keras-estimator-class",
    (
        "tf.estimator.experimental.RNNEstimator(\n"
        "    tf.estimator.BinaryClassHead(), [a], units=[2], return_sequences=True)"
    ): "keras-estimator-class",
}


@pytest.mark.parametrize("estimator", OTHER_HEADS)
def test_a_head_that_is_not_carried_is_refused(estimator: str) -> None:
    """The refusal appears once."""
    with pytest.raises(Refused) as caught:
        migrate_to_keras(f"{HEAD_PROGRAM}job = {estimator}\njob.train(rows, steps=1)\n", "train.py")
    assert [each.rule for each in caught.value.blockers] == [OTHER_HEADS[estimator]]


RECURRENT = {
    "units=[8]": (
        "        tf.keras.layers.SimpleRNNCell(8, name='simple_rnn_cell'),\n        name='rnn')\n"
    ),
    "units=8, cell_type='lstm'": "self.rnn = tf.keras.layers.LSTM(8, name='lstm')\n",
    "units=UNITS, cell_type='gru'": "self.rnn = tf.keras.layers.GRU(UNITS, name='gru')\n",
    "units=int('8'), cell_type=KIND": "self.rnn = tf.keras.layers.GRU(int('8'), name='gru')\n",
    "units=(4, 2), cell_type=tf.keras.layers.LSTMCell": (
        "        tf.keras.layers.StackedRNNCells([\n"
        "            tf.keras.layers.LSTMCell(4, name='lstm_cell'),\n"
        "            tf.keras.layers.LSTMCell(2, name='lstm_cell_1')], name='stacked_rnn_cells'),\n"
        "        name='rnn')\n"
    ),
    "units=[4], cell_type=Cell": "tf.keras.layers.RNN(Cell(units=4), name='rnn')\n",
    "rnn_cell_fn=lambda: [Cell(2), Cell(3)]": (
        "tf.keras.layers.RNN([Cell(2), Cell(3)], name='rnn')\n"
    ),
    "rnn_cell_fn=make_cell": "tf.keras.layers.RNN(make_cell(), name='rnn')\n",
    "units=[4], return_sequences=True, sequence_mask='there'": (
        "    self.head = SequenceHead(BinaryClassHead(), 'there')\n"
    ),
    "units=[4], return_sequences=True, n_classes=3, weight_column='w'": (
        "    self.head = SequenceHead(MultiClassHead(3, weight_column='w'))\n"
    ),
    "units=[4], optimizer='SGD'": "tf.clip_by_norm(each, 5.0)",
    "units=[4], optimizer=tf.keras.optimizers.legacy.SGD(.1)": "    self.minimize(loss, tape)\n",
    "units=[4], context_feature_columns=[a]": (
        "    self.dense_features = DenseFeatures([a], name='dense_features')\n"
    ),
}
"""Arguments of an RNNClassifier, and their code in the Keras form."""

RECURRENT_PROGRAM = """\
import tensorflow as tf

UNITS = 8
KIND = 'gru'


class Cell(tf.keras.layers.Layer):
  pass


def make_cell():
  return tf.keras.layers.GRUCell(3)


a = tf.feature_column.numeric_column('a')
steps = tf.feature_column.sequence_numeric_column('b', shape=2)
job = tf.estimator.experimental.RNNClassifier([steps], ARGUMENTS)
job.train(lambda: tf.data.Dataset.from_tensors(({}, [1])), steps=1)
"""


@pytest.mark.parametrize("arguments", RECURRENT)
def test_recurrent_networks_are_layers_of_keras(arguments: str) -> None:
    """The layers have the names that their variables have in checkpoints."""
    program = RECURRENT_PROGRAM.replace("ARGUMENTS", arguments)
    text = migrate_to_keras(program, "train.py").source
    assert RECURRENT[arguments] in text
    assert "steps = SequenceNumeric('b', shape=2)\n" in text


NO_CELLS = {
    "units=8": "Add cell_type='simple_rnn' to the call",
    "units=FLAGS.units": "Write a list of numbers into the call",
    "units=[8], cell_type=FLAGS.kind": "a class of the program or of tf.keras.layers",
    "units=[8], cell_type='peephole'": "Write 'simple_rnn', 'lstm', 'gru'",
    "units=[8], return_sequences=FLAGS.steps": "Write the truth value into the call",
}


@pytest.mark.parametrize("arguments", NO_CELLS)
def test_cells_that_are_not_known_are_refused(arguments: str) -> None:
    """Variable names depend on the cells, so unknown cells are refused."""
    program = RECURRENT_PROGRAM.replace("ARGUMENTS", arguments)
    with pytest.raises(Refused, match=re.escape(NO_CELLS[arguments])) as caught:
        migrate_to_keras(program, "train.py")
    assert [each.rule for each in caught.value.blockers] == ["keras-argument"]


@pytest.mark.parametrize(
    "canned",
    [
        *(Canned(name, False) for name in CLASSES),
        # The heads of TensorFlow 1 are private, so they are refused.
        *(
            Canned(name, True)
            for name in CLASSES
            if not name.endswith("Estimator") and not name.startswith("RNN")
        ),
    ],
)
def test_arguments_are_those_of_the_estimator(canned: Canned) -> None:
    """The order matters because programs may pass arguments by position."""
    place = v2.experimental if canned.name.startswith("RNN") else v2
    kind = getattr(v1 if canned.is_v1 else place, canned.name)
    assert canned.order == [*inspect.signature(kind).parameters]


def run_both(program: types.ModuleType, folder: pathlib.Path, **environment: str) -> list[Any]:
    """Runs both parts of a program in new processes; returns the results that it prints."""
    for part in ("old", "new"):
        command = ("-m", program.__name__, part, str(folder))
        ran = run(folder, *command, check=True, TF_USE_LEGACY_KERAS="1", **environment)
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]


@pytest.mark.full
def test_a_canned_estimator_and_its_keras_form_go_on_alike(tmp_path: pathlib.Path) -> None:
    """From one converted checkpoint both compute the same variables, metrics and predictions.

    Their checkpoints also have the same keys.
    """
    results = run_both(canned_as_keras, tmp_path)
    assert [each["name"] for each in results] == canned_as_keras.NAMES
    for each in results:
        (largest, name), *_ = each["worst"]
        assert largest <= TOLERANCE, (each["name"], name, largest)
        # A baseline only has a bias, its slots and the step.
        assert each["moved"] > (2 if "baseline" in each["name"] else 3), each["name"]


if __name__ == "__main__":
    GOLDEN.write_text(census())
