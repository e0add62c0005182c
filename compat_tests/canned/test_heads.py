"""Heads compared with stock's: losses, predictions, metrics, graphs, exports and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.conftest import HAS_STOCK
from compat_tests.support.graph_ops import ops_with_inputs
from estimator_bridge import errors, estimator
from tf2_engine import tf_compat

if HAS_STOCK:
    from compat_tests.support import stock

tf1 = tf.compat.v1

_RNG = np.random.default_rng(5)
_LOGITS = _RNG.normal(size=[6, 3]).astype(np.float32)
_FEATURES = {"weight": np.array([1.0, 2.0, 0.5, 0.0, 3.0, 1.0], np.float32)}
_INDICATORS = _RNG.integers(2, size=[6, 3])
_SGD = tf_compat.keras2().optimizers.legacy.SGD
_WORDS = np.array(["a", "b", "c", "a", "b", "c"], dtype=object)


def _mean_loss(labels: Any, logits: Any, features: Any) -> Any:
    return tf.reduce_mean(tf.abs(tf.cast(labels, tf.float32) - logits), -1, keepdims=True) + 0 * (
        tf.reshape(features["weight"], [-1, 1])
    )


def _sparse_words() -> Any:
    return tf.SparseTensor(
        [[0, 0], [1, 0], [1, 1], [3, 0], [4, 0], [5, 0]],
        tf.constant(["a", "b", "c", "a", "b", "c"]),
        [6, 2],
    )


_ALL = {"weight_column": "weight", "name": "head"}
_ONES = np.array([0, 1, 1, 0, 1, 0])
_ABC = {"n_classes": 3, "label_vocabulary": list("abc")}

# How a head is made, the logits it has, and its labels.
HEADS: dict[str, tuple[str, dict[str, Any], int, Any]] = {
    "binary": ("BinaryClassHead", {}, 1, _ONES),
    "binary, all": (
        "BinaryClassHead",
        {**_ALL, "thresholds": [0.25, 0.5], "label_vocabulary": list("ab")},
        1,
        np.array([["a"], ["b"], ["b"], ["a"], ["b"], ["a"]], dtype=object),
    ),
    "binary, loss": (
        "BinaryClassHead",
        {"loss_fn": _mean_loss, "loss_reduction": "sum"},
        1,
        _ONES.astype(float),
    ),
    "several": ("MultiClassHead", {"n_classes": 3}, 3, np.array([0, 1, 2, 0, 1, 2])),
    "several, all": ("MultiClassHead", {**_ALL, **_ABC}, 3, _WORDS),
    "labels": ("MultiLabelHead", {"n_classes": 3}, 3, _INDICATORS),
    "labels, all": (
        "MultiLabelHead",
        {
            **_ABC,
            "weight_column": "weight",
            "thresholds": [0.4],
            "classes_for_class_based_metrics": ["c", "a"],
        },
        3,
        _sparse_words,
    ),
    "labels, classes": (
        "MultiLabelHead",
        {"n_classes": 3, "classes_for_class_based_metrics": [1], "name": "head"},
        3,
        _INDICATORS,
    ),
    "number": ("RegressionHead", {}, 1, np.arange(6.0)),
    "numbers": (
        "RegressionHead",
        {**_ALL, "label_dimension": 3, "inverse_link_fn": tf.exp},
        3,
        np.arange(18.0).reshape(6, 3),
    ),
    "counts": ("PoissonRegressionHead", {"weight_column": "weight"}, 1, np.arange(6)),
    "counts, part": ("PoissonRegressionHead", {"compute_full_loss": False}, 1, np.arange(6)),
    "chances": ("LogisticRegressionHead", {"weight_column": "weight"}, 1, np.linspace(0, 1, 6)),
}


def evaluated(head: Any, width: int, labels: Any) -> dict[str, Any]:
    """Returns losses, predictions and metrics of a head for one batch, as numbers."""
    features = {key: tf.constant(value) for key, value in _FEATURES.items()}
    logits = tf.constant(_LOGITS[:, :width])
    labels = labels() if callable(labels) else tf.constant(labels)
    extra = [tf.constant(0.25)]
    metrics = head.metrics(regularization_losses=extra)
    updated = head.update_metrics(metrics, features, logits, labels, regularization_losses=extra)
    values = {
        "loss": head.loss(labels, logits, features=features),
        "regularized": head.loss(labels, logits, features, regularization_losses=extra),
        "predictions": head.predictions(logits),
        "metrics": {name: updated[name].result() for name in sorted(updated)},
    }
    return tf.nest.map_structure(lambda tensor: tensor.numpy(), values)


# Graphs are compared op by op below.
@pytest.mark.parametrize("case", HEADS)
@pytest.mark.stock
def test_heads_are_those_of_stock(case: str) -> None:
    """Losses, predictions and metrics are stock's by 0.0, with the same names in the same order."""
    name, options, width, labels = HEADS[case]
    ours, theirs = (
        evaluated(getattr(namespace, name)(**options), width, labels)
        for namespace in (estimator, stock.ESTIMATOR)
    )

    assert list(ours["predictions"]) == list(theirs["predictions"])
    assert list(ours["metrics"]) == list(theirs["metrics"])
    tf.nest.map_structure(np.testing.assert_array_equal, ours, theirs)


def ops_of_spec(namespace: Any, case: str, mode: str) -> dict[str, tuple[str, ...]]:
    """Returns the type and inputs of each op of a graph with a head and its spec, by its name."""
    name, options, width, labels = HEADS[case]
    with tf.Graph().as_default() as graph:
        tf1.train.create_global_step()
        head = getattr(namespace, name)(**options)
        weights = tf1.get_variable("weights", [3, width])
        head.create_estimator_spec(
            {key: tf.constant(value) for key, value in _FEATURES.items()},
            mode,
            tf.matmul(tf.constant(_LOGITS[:, :3]), weights),
            labels() if callable(labels) else tf.constant(labels),
            optimizer=_SGD(0.1),
            trainable_variables=[weights],
            update_ops=[tf.no_op()],
            regularization_losses=[tf.constant(0.25)],
        )
        return ops_with_inputs(graph)


# The spec of an evaluation has the predictions too.
@pytest.mark.parametrize("mode", ["train", "eval", pytest.param("infer", marks=pytest.mark.full)])
@pytest.mark.parametrize("case", HEADS)
@pytest.mark.stock
def test_graphs_of_heads_are_those_of_stock(case: str, mode: str) -> None:
    """Every op has stock's name, type and inputs, also of losses of regularization and metrics."""
    ours, theirs = (
        ops_of_spec(namespace, case, mode) for namespace in (estimator, stock.ESTIMATOR)
    )

    assert ours == theirs


def specs(namespace: Any, mode: str) -> dict[str, Any]:
    """Returns what a spec of two heads has: keys, shapes, names of outputs and signatures."""
    heads = [
        namespace.RegressionHead(name="price"),
        namespace.BinaryClassHead(name="sold", thresholds=[0.5]),
    ]
    with tf.Graph().as_default() as graph:
        tf1.train.create_global_step()
        weights = tf1.get_variable("weights", [2, 2])
        logits = tf.matmul(tf.constant(_LOGITS[:, :2]), weights)
        spec = namespace.MultiHead(heads, head_weights=[1.0, 0.5]).create_estimator_spec(
            {},
            mode,
            logits,
            {"price": tf.constant(np.arange(6.0)), "sold": tf.constant([0, 1, 1, 0, 0, 1])},
            optimizer=_SGD(0.1),
            trainable_variables=[weights],
            regularization_losses=[tf.constant(0.25)],
        )
        return {
            "ops": ops_with_inputs(graph),
            "predictions": {
                key: (value.name, value.shape.as_list()) for key, value in spec.predictions.items()
            },
            "outputs": {
                key: (type(output).__name__, sorted(getattr(output, "outputs", {})))
                for key, output in (spec.export_outputs or {}).items()
            },
            "metrics": sorted(spec.eval_metric_ops or {}),
            "summaries": sorted(
                tensor.op.inputs[0].op.get_attr("value").string_val[0]
                for tensor in tf1.get_collection(tf1.GraphKeys.SUMMARIES)
            ),
            "variables": sorted(variable.name for variable in tf1.global_variables()),
        }


@pytest.mark.stock
@pytest.mark.parametrize("mode", ["train", "eval", "infer"])
def test_several_heads_are_those_of_stock(mode: str) -> None:
    """Keys, names of all ops, outputs, metrics, summaries and variables are stock's."""
    assert specs(estimator, mode) == specs(stock.ESTIMATOR, mode)


def _spec(head: Any, **options: Any) -> Any:
    with tf.Graph().as_default():
        return head.create_estimator_spec(
            {}, "train", tf.zeros([2, head.logits_dimension]), tf.zeros([2, 1], tf.int64), **options
        )


# How a head is misused, and what both messages say.
REFUSED: dict[str, tuple[Any, str]] = {
    "thresholds": (lambda e: e.BinaryClassHead(thresholds=[1.0]), r"thresholds not in \(0, 1\)"),
    "vocabulary": (
        lambda e: e.BinaryClassHead(label_vocabulary="ab"),
        "label_vocabulary should be a list or a tuple",
    ),
    "reduction": (
        lambda e: e.RegressionHead(loss_reduction="none"),
        "Invalid loss_reduction: none",
    ),
    "no classes": (lambda e: e.MultiClassHead(None), "n_classes cannot be None"),
    "two classes": (lambda e: e.MultiClassHead(2), "n_classes must be > 2"),
    "words": (
        lambda e: e.MultiClassHead(3, label_vocabulary=["a"]),
        '"label_vocabulary" does not have "n_classes" items',
    ),
    "one label": (lambda e: e.MultiLabelHead(1), "n_classes must be > 1"),
    "class of metrics": (
        lambda e: e.MultiLabelHead(3, classes_for_class_based_metrics=[3]),
        r"must be in range \[0, 2\]",
    ),
    "dimension": (lambda e: e.RegressionHead(0), "Invalid label_dimension"),
    "loss": (
        lambda e: e.RegressionHead(loss_fn=lambda labels: labels),
        "loss_fn must contain argument: logits",
    ),
    "loss arguments": (
        lambda e: e.RegressionHead(loss_fn=lambda labels, logits, name: labels),
        r"loss_fn has unexpected args: \['name'\]",
    ),
    "heads": (lambda e: e.MultiHead([]), "Must specify heads"),
    "names": (lambda e: e.MultiHead([e.RegressionHead()]), "All given heads must have name"),
    "weights of heads": (
        lambda e: e.MultiHead([e.RegressionHead(name="a")], [1.0, 2.0]),
        "must have the same size",
    ),
    "prediction": (
        lambda e: e.BinaryClassHead().predictions(tf.zeros([2, 1]), ["price"]),
        "Prediction key must be in PredictionKeys, given: price",
    ),
    "logits": (lambda e: e.BinaryClassHead().predictions(tf.zeros([2, 2])), "logits shape must be"),
    "rank": (
        lambda e: e.BinaryClassHead().predictions(tf.zeros([2])),
        "logits must have rank at least 2",
    ),
    "no labels": (
        lambda e: e.RegressionHead().loss(None, tf.zeros([2, 1]), {}),
        "You must provide a labels Tensor",
    ),
    "sparse labels": (
        lambda e: e.RegressionHead().loss(tf.sparse.eye(2), tf.zeros([2, 1]), {}),
        "SparseTensor labels are not supported",
    ),
    "width of labels": (
        lambda e: e.RegressionHead().loss(tf.zeros([2, 3]), tf.zeros([2, 1]), {}),
        "Mismatched label shape. Expected labels dimension=1",
    ),
    "range of labels": (
        lambda e: e.BinaryClassHead().loss(tf.constant([0, 2]), tf.zeros([2, 1]), {}),
        "Labels must be <= 2 - 1",
    ),
    "negative labels": (
        lambda e: e.MultiClassHead(3).loss(tf.constant([0, -2]), tf.zeros([2, 3]), {}),
        "Labels must be >= 0",
    ),
    "type of labels": (
        lambda e: e.MultiClassHead(3).loss(tf.zeros([2]), tf.zeros([2, 3]), {}),
        "Labels dtype should be integer",
    ),
    "weights": (
        lambda e: e.RegressionHead(weight_column="w").loss(
            tf.zeros([2]), tf.zeros([2, 1]), {"w": tf.zeros([3])}
        ),
        "weights shape must be",
    ),
    "weight column": (
        lambda e: e.RegressionHead(weight_column=3).loss(tf.zeros([2]), tf.zeros([2, 1]), {}),
        "Weight column must be either a string or NumericColumn",
    ),
    "labels of heads": (
        lambda e: e.MultiHead([e.RegressionHead(name="a")]).loss({}, tf.zeros([2, 1]), {}),
        r"labels has missing values for head\(s\): \['a'\]",
    ),
    "no optimizer": (
        lambda e: _spec(e.BinaryClassHead()),
        "train_op_fn and optimizer cannot both be None",
    ),
    "two ways": (
        lambda e: _spec(e.BinaryClassHead(), optimizer="a", train_op_fn=lambda loss: loss),
        "train_op_fn and optimizer cannot both be set",
    ),
    "optimizer": (
        lambda e: _spec(e.BinaryClassHead(), optimizer=tf1.train.AdamOptimizer()),
        "The given optimizer is not a tf.keras.optimizers.Optimizer instance",
    ),
    "variables": (
        lambda e: _spec(e.BinaryClassHead(), optimizer=_SGD(0.1)),
        "trainable_variables cannot be None",
    ),
    "update ops": (
        lambda e: _spec(e.BinaryClassHead(), train_op_fn=lambda loss: loss, update_ops=3),
        "update_ops should be a list or a tuple",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_misuse_is_refused_by_name(case: str, namespace: Any) -> None:
    """Both sides raise the same built-in kind of error, with the same key phrase."""
    call, message = REFUSED[case]
    kind = TypeError if case == "weight column" else ValueError
    with pytest.raises(kind, match=message) as caught:
        call(namespace)
    assert namespace is not estimator or isinstance(caught.value, errors.EngineError)


def test_a_head_of_a_program_needs_a_spec() -> None:
    """A head that overrides neither way to a spec says so; one of them is enough."""

    class Half(estimator.Head):
        name = loss_reduction = None
        logits_dimension = 1
        loss = predictions = metrics = update_metrics = lambda self: None

    class Whole(Half):
        def _create_tpu_estimator_spec(self, **arguments: Any) -> Any:
            return estimator.tpu.TPUEstimatorSpec(arguments["mode"], arguments["logits"])

    with pytest.raises(NotImplementedError, match="Half has neither"):
        Half().create_estimator_spec({}, "infer", None)
    with pytest.raises(TypeError, match="abstract"):
        estimator.Head()
    with tf.Graph().as_default():
        logits = tf.zeros([1])
        assert Whole().create_estimator_spec({}, "infer", logits).predictions is logits


NAMES_IN_TRAINING = {
    "Linear": ["linear/head/truediv", "linear/head/weighted_loss/Sum", "linear/head/labels"],
    "DNN": [
        "dnn/head/truediv",
        "dnn/head/weighted_loss/Sum",
        "dnn/head/predictions/probabilities",
        "dnn/logits/BiasAdd",
    ],
    "DNNLinearCombined": ["head/truediv", "head/logistic_loss", "head/assert_range/Identity"],
}
"""Tensors that programs of TensorFlow 1 name in hooks; the names are those of stock 2.15.0."""


@pytest.mark.parametrize("family", NAMES_IN_TRAINING)
def test_hooks_find_the_tensors_of_classifiers_by_name(family: str, tmp_path: Any) -> None:
    """A LoggingTensorHook of a classifier of TensorFlow 1 finds what stock names so."""
    column = tf.feature_column.numeric_column("x")
    network, linear = {"hidden_units": [2], "feature_columns": [column]}, [column]
    combined = {f"dnn_{key}": value for key, value in network.items()}
    options = {
        "DNN": network,
        "Linear": {"feature_columns": linear},
        "DNNLinearCombined": {**combined, "linear_feature_columns": linear},
    }[family]
    job = getattr(estimator, f"{family}Classifier")(model_dir=str(tmp_path), **options)
    hook = tf1.train.LoggingTensorHook(NAMES_IN_TRAINING[family], every_n_iter=1)
    batch = {"x": [[1.0], [2.0]]}, [0, 1]
    job.train(lambda: tf.data.Dataset.from_tensors(batch), steps=1, hooks=[hook])

    assert job.get_variable_value("global_step") == 1
