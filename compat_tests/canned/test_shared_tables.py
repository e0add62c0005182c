"""Which variables canned estimators train: shared tables, and the variables of an input_fn."""

from __future__ import annotations

import json

import pytest

from compat_tests.support import fresh

PROGRAM = """
import json, sys
import numpy as np
import tensorflow as tf

tf.compat.v1.disable_eager_execution()  # shared_embeddings are for graphs alone
subject = sys.argv[1]
if subject != "stock":
    from estimator_bridge import install
    from estimator_bridge.legacy.spec import set_default_quirks

    install.install(replace=True)
    set_default_quirks(subject.removeprefix("bridge "))
columns, estimators = tf.feature_column, tf.compat.v2.estimator


def shared(make=columns.categorical_column_with_identity):
    words = [make(key, 5) for key in ("a", "b")]
    return columns.shared_embeddings(words, 2, initializer=tf.compat.v1.ones_initializer())


def input_fn():
    features = {"a": [[1], [2]], "b": [[3], [1]], "s": tf.sparse.eye(2, dtype=tf.int64)}
    return tf.data.Dataset.from_tensors((features, [[1], [0]])).repeat()


sequence = columns.sequence_categorical_column_with_identity("s", 5)
tanh = tf.nn.tanh  # All units of a network of rectifiers may be 0 from the start.
KINDS = {
    "DNN": lambda: estimators.DNNClassifier([3], shared(), activation_fn=tanh),
    "DNNLinearCombined": lambda: estimators.DNNLinearCombinedClassifier(
        dnn_feature_columns=shared(), dnn_hidden_units=[3], dnn_activation_fn=tanh
    ),
    "RNN": lambda: estimators.experimental.RNNClassifier(
        [columns.indicator_column(sequence)], shared(), units=[2]
    ),
    "DNN of TensorFlow 1": lambda: tf.compat.v1.estimator.DNNClassifier(
        [3], shared(), activation_fn=tanh
    ),
}
moved = {}
for kind, make in KINDS.items():
    job = make()
    job.train(input_fn, steps=3)
    [table] = [name for name in job.get_variable_names() if name.endswith("shared_embedding")]
    moved[kind] = bool(np.abs(job.get_variable_value(table) - 1.0).max() > 0)
print(json.dumps(moved))
"""
STOCK = pytest.param("stock", marks=pytest.mark.stock)


@pytest.mark.full
@pytest.mark.parametrize("subject", ["bridge documented", "bridge stock", STOCK])
def test_quirks_decide_whether_shared_tables_are_trained(subject: str) -> None:
    """With "documented" all estimators train them, with "stock" those of TensorFlow 1 alone.

    Stock hands an optimizer of Keras the variables of layers, and the table is none of them.
    """
    ran = fresh.code(PROGRAM, subject, check=True)
    moved = json.loads(ran.stdout.splitlines()[-1])

    by_all = subject == "bridge documented"
    assert moved == {kind: by_all or kind == "DNN of TensorFlow 1" for kind in moved}
    warned = "the shared table a_b_shared_embedding is not trained" in ran.stderr
    assert warned == (subject == "bridge stock")


OUTSIDE = """
import json, sys
import numpy as np
import tensorflow as tf

if sys.argv[1] == "bridge":
    from estimator_bridge import install

    install.install(replace=True)


def input_fn():
    scale = tf.compat.v1.get_variable("scale", [], initializer=tf.compat.v1.ones_initializer())
    return {"x": scale * [[1.0], [2.0]]}, tf.constant([[1.0], [3.0]])


x = tf.feature_column.numeric_column("x")
KINDS = {
    "DNN": lambda names: names.DNNRegressor([], [x]),
    "Linear": lambda names: names.LinearRegressor([x]),
    "DNNLinearCombined": lambda names: names.DNNLinearCombinedRegressor(
        linear_feature_columns=[x], dnn_feature_columns=[x], dnn_hidden_units=[2]
    ),
}
moved = {}
for kind, make in KINDS.items():
    for version in ("v1", "v2"):
        job = make(getattr(tf.compat, version).estimator)
        job.train(input_fn, steps=3)
        moved[f"{kind} {version}"] = bool(job.get_variable_value("scale") != 1.0)
print(json.dumps(moved))
"""


@pytest.mark.full
@pytest.mark.parametrize("subject", ["bridge", STOCK])
def test_variables_of_an_input_fn_are_trained_as_by_stock(subject: str) -> None:
    """Estimators of TensorFlow 2, and combined ones, hand optimizers their own variables.

    Where such a variable is not trained, a warning of the bridge names it.
    """
    ran = fresh.code(OUTSIDE, subject, check=True)
    moved = json.loads(ran.stdout.splitlines()[-1])

    assert moved == {kind: kind in ("DNN v1", "Linear v1") for kind in moved}
    assert len(moved) == 6
    warnings = ran.stderr.count("the variable scale is made before the model")
    assert warnings == (4 if subject == "bridge" else 0)
