"""Heads of TensorFlow 1 on canned estimators: stock's private ones, and `tf.contrib.estimator`."""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from compat_tests import goldens
from compat_tests.conftest import HAS_STOCK
from compat_tests.support.graph_ops import ops_with_inputs
from compat_tests.support.tiers import quick
from estimator_bridge import estimator
from estimator_bridge.canned.heads import head_functions
from estimator_bridge.run import install
from estimator_bridge.run.tf1.running import TF1View
from tf2_engine import tf_compat

if HAS_STOCK:
    from compat_tests.support import stock

MODES = {"train": "train", "evaluate": "eval", "predict": "infer"}
FULL = pytest.mark.full
FAMILIES = ("DNN", "Linear", "DNNLinearCombined", "Baseline")

_RNG = np.random.default_rng(4)
_SIZE = 8
LABELS: dict[str, Any] = {
    "two": _RNG.integers(2, size=[_SIZE, 1]),
    "words": np.array(list("abcabcab"), object)[:, None],
    "number": _RNG.normal(size=[_SIZE]).astype(np.float32),
    "numbers": _RNG.normal(size=[_SIZE, 3]).astype(np.float32),
    "count": _RNG.integers(4, size=[_SIZE, 1]),
    "chance": _RNG.random([_SIZE, 1]).astype(np.float32),
    "tags": _RNG.integers(2, size=[_SIZE, 3]),
    "both": {"a": _RNG.normal(size=[_SIZE, 1]), "b": _RNG.integers(2, size=[_SIZE, 1])},
}
FEATURES = {
    "x": np.linspace(-1, 1, _SIZE).astype(np.float32)[:, None],
    "w": np.linspace(0.5, 2, _SIZE).astype(np.float32)[:, None],
    "job": np.array(list("pqrspqrs"), object),
}


def input_fn(labels: str) -> Any:
    return tf.data.Dataset.from_tensor_slices((FEATURES, LABELS[labels])).batch(_SIZE).repeat(3)


def _distance(labels: Any, logits: Any, features: Any) -> Any:
    difference = tf.abs(tf.cast(labels, tf.float32) - logits)
    return tf.reduce_mean(difference, -1, keepdims=True) * features["w"]


# The labels, and what makes the head of stock's private module, or the bridge's.
PRIVATE: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "binary": (
        "two",
        lambda heads: heads._binary_logistic_head_with_sigmoid_cross_entropy_loss(
            "w", thresholds=(0.3, 0.6), name="click"
        ),
    ),
    "binary with a loss": (
        "two",
        lambda heads: heads._binary_logistic_head_with_sigmoid_cross_entropy_loss(
            tf.feature_column.numeric_column("w"),
            loss_reduction=tf.losses.Reduction.MEAN,
            loss_fn=_distance,
        ),
    ),
    "classes": (
        "words",
        lambda heads: heads._multi_class_head_with_softmax_cross_entropy_loss(
            3, label_vocabulary=list("abc"), name="kind"
        ),
    ),
    "number": ("number", lambda heads: heads._regression_head(inverse_link_fn=tf.exp)),
    "numbers": (
        "numbers",
        lambda heads: heads._regression_head("w", 3, tf.losses.Reduction.SUM_BY_NONZERO_WEIGHTS),
    ),
}


def _mean(**more: Any) -> dict[str, Any]:
    return {"loss_reduction": tf.losses.Reduction.SUM_OVER_BATCH_SIZE, **more}


def _counts(heads: Any) -> Any:
    """Makes what `tf.contrib.estimator` made of stock's private head."""

    def loss(labels: Any, logits: Any) -> Any:
        return tf.nn.log_poisson_loss(labels, logits, compute_full_loss=False)

    return heads._regression_head("w", **_mean(loss_fn=loss, inverse_link_fn=tf.exp, name="n"))


def _chances(heads: Any) -> Any:
    def loss(labels: Any, logits: Any) -> Any:
        labels = heads._assert_range(labels, 2, message="Labels must be in range [0, 1]")
        return tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)

    return heads._regression_head(**_mean(loss_fn=loss, inverse_link_fn=tf.sigmoid))


# The labels, what makes the head of `tf.contrib.estimator`, and what that called in TensorFlow 1.
CONTRIB: dict[str, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "binary": (
        "two",
        lambda contrib: contrib.binary_classification_head("w", [0.5], name="x"),
        lambda heads: heads._binary_logistic_head_with_sigmoid_cross_entropy_loss(
            "w", [0.5], **_mean(name="x")
        ),
    ),
    "classes": (
        "words",
        lambda contrib: contrib.multi_class_head(3, label_vocabulary=list("abc")),
        lambda heads: heads._multi_class_head_with_softmax_cross_entropy_loss(
            3, label_vocabulary=list("abc"), **_mean()
        ),
    ),
    "numbers": (
        "numbers",
        lambda contrib: contrib.regression_head("w", 3),
        lambda heads: heads._regression_head("w", 3, **_mean()),
    ),
    "counts": (
        "count",
        lambda contrib: contrib.poisson_regression_head("w", compute_full_loss=False, name="n"),
        _counts,
    ),
    "chances": ("chance", lambda contrib: contrib.logistic_regression_head(), _chances),
}


def canned(namespace: Any, family: str, head: Any, model_dir: Any = None) -> Any:
    x = tf.feature_column.numeric_column("x")
    job = tf.feature_column.categorical_column_with_vocabulary_list("job", list("pqrs"))
    dense, linear = [x, tf.feature_column.embedding_column(job, 2)], [x, job]
    options: dict[str, dict[str, Any]] = {
        "DNN": {"hidden_units": [4], "feature_columns": dense, "batch_norm": True},
        "Linear": {"feature_columns": linear, "optimizer": "Adam"},
        "DNNLinearCombined": {
            "linear_feature_columns": linear,
            "dnn_feature_columns": dense,
            "dnn_hidden_units": [4],
            "dnn_optimizer": lambda: tf.train.AdamOptimizer(0.1),
        },
        "Baseline": {},
    }
    config = namespace.RunConfig(
        model_dir=model_dir, tf_random_seed=3, checkpoint_save_graph_def=False
    )
    return getattr(namespace, f"{family}Estimator")(head, config=config, **options[family])


def described(namespace: Any, family: str, head: Any, labels: str) -> dict[str, Any]:
    """Returns each op with its type and inputs, and names of tensors of the spec, by mode."""
    found: dict[str, Any] = {}
    for mode, key in MODES.items():
        job = canned(namespace, family, head)
        with tf.Graph().as_default() as graph:
            tf.train.create_global_step()
            features, targets = tf.data.make_initializable_iterator(input_fn(labels)).get_next()
            spec = job.model_fn(features, None if key == "infer" else targets, key, job.config)
            summaries = [each.name for each in tf.get_collection(tf.GraphKeys.SUMMARIES)]
        found[mode] = {"ops": ops_with_inputs(graph), "summaries": summaries, **names_of(spec)}
    return found


def names_of(spec: Any) -> dict[str, Any]:
    outputs = (spec.export_outputs or {}).items()
    return {
        "loss": None if spec.loss is None else spec.loss.name,
        "predictions": {str(key): each.name for key, each in spec.predictions.items()},
        "metrics": {key: (v.name, u.name) for key, (v, u) in spec.eval_metric_ops.items()},
        "outputs": {
            key: {name: each.name for name, each in getattr(output, "outputs", {}).items()}
            for key, output in outputs
        },
    }


GRAPHS = {
    **{f"private, {case}": (labels, make, make) for case, (labels, make) in PRIVATE.items()},
    **{f"contrib, {case}": row for case, row in CONTRIB.items()},
}
QUICK = (("private, binary", "DNN"), ("contrib, binary", "DNN"))


@pytest.mark.stock
@pytest.mark.parametrize(
    "case, family",
    [
        pytest.param(*pair, marks=() if pair in QUICK else FULL)
        for pair in itertools.product(GRAPHS, FAMILIES)
    ],
)
def test_graphs_of_heads_are_those_of_stock(case: str, family: str) -> None:
    """In every mode each op has stock's name, type and inputs; so have the tensors of the spec.

    Those of `tf.contrib.estimator` have the ops of the private heads that it made them of.
    """
    labels, make, make_of_private = GRAPHS[case]
    ours = described(estimator, family, make(head_functions), labels)
    assert ours == described(stock.ESTIMATOR, family, make_of_private(stock.PRIVATE_HEADS), labels)


def _of_tags(contrib: Any) -> Any:
    own = {"classes_for_class_based_metrics": ["c"], "label_vocabulary": list("abc")}
    return contrib.multi_label_head(3, "w", thresholds=[0.4], **own)


def _of_both(contrib: Any) -> Any:
    heads = [contrib.regression_head(name="a"), contrib.binary_classification_head(name="b")]
    return contrib.multi_head(heads, head_weights=[1.0, 0.5])


TRAINED = {
    **{case: (labels, make) for case, (labels, make, _) in CONTRIB.items()},
    "tags": ("tags", _of_tags),
    "both": ("both", _of_both),
}


NAMES = json.loads(pathlib.Path(goldens.__file__).with_name("contrib_heads.json").read_text())
"""What the source of TensorFlow 1.15's heads, on stock 2.15.1, names tensors in each mode."""


@pytest.fixture(scope="module")
def contrib() -> Iterator[Any]:
    """`tf.contrib.estimator`, as a program of TensorFlow 1 sees it."""
    install.install(replace=True)
    with tf_compat.names_of_tf1():
        yield TF1View().module("tensorflow.contrib.estimator")
    install.uninstall()


@pytest.mark.parametrize("case", quick(["chances"], TRAINED))
def test_heads_of_contrib_train_estimators_of_tensorflow_1(
    case: str, contrib: Any, tmp_path: pathlib.Path
) -> None:
    """They take optimizers of `tf.train`: the loss falls, and each example is predicted."""
    labels, make = TRAINED[case]
    job = canned(estimator, "Linear", make(contrib), str(tmp_path))
    job.train(lambda: input_fn(labels), steps=1)
    before = job.evaluate(lambda: input_fn(labels), steps=1)["loss"]
    job.train(lambda: input_fn(labels).repeat(10), steps=30)

    assert job.evaluate(lambda: input_fn(labels), steps=1)["loss"] < before
    assert len(list(job.predict(lambda: input_fn(labels).take(1)))) == _SIZE


@pytest.mark.parametrize("case", ["both", pytest.param("tags", marks=FULL)])
def test_tensors_of_several_labels_and_heads_have_the_names_of_tensorflow_1(case: str) -> None:
    """Programs log them by name; stock 2.15.1 has neither head to compare with."""
    labels, make = TRAINED[case]
    found = described(estimator, "Linear", make(head_functions), labels)
    without_ops = {
        mode: {key: value for key, value in each.items() if key != "ops"}
        for mode, each in found.items()
    }

    assert json.loads(json.dumps(without_ops)) == NAMES[case]


@pytest.mark.parametrize("case", PRIVATE)
def test_private_heads_are_called_as_those_of_stock(case: str) -> None:
    """They are a `_Head`, whose sixth argument is the function that makes the train op."""
    labels, make = PRIVATE[case]
    with tf.Graph().as_default():
        tf.train.create_global_step()
        head = make(head_functions)
        features, targets = tf.data.make_initializable_iterator(input_fn(labels)).get_next()
        logits = tf.get_variable("logits", [_SIZE, head.logits_dimension])
        op = tf.no_op("own")
        spec = head.create_estimator_spec(
            *(features, "train", logits, targets, None, lambda loss: op), [tf.constant(0.5)]
        )

    assert isinstance(head, head_functions._Head)
    assert spec.train_op is op


def test_a_head_without_a_way_to_a_spec_says_so_as_in_stock() -> None:
    """Each of the two methods has stock's words, for a head that overrides neither."""

    class Half(head_functions._Head):
        """Overrides neither."""

    with pytest.raises(NotImplementedError, match="Subclasses of _Head must implement"):
        Half().create_estimator_spec({}, "infer", None)
    with pytest.raises(NotImplementedError, match="TPUEstimatorSpec not available for this model"):
        Half()._create_tpu_estimator_spec({}, "infer", None)
