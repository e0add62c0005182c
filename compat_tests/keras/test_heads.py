"""Linear models over columns and heads of Keras models compute what canned estimators compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.references.tolerance import allowed
from estimator_bridge import estimator as canned
from tf2_engine import errors, preprocessing
from tf2_engine import keras as ours
from tf2_engine.keras.saved_model import outputs_of, request_of

RNG = np.random.default_rng(1)
WEIGHTS = RNG.uniform(0.5, 1.5, 12).astype(np.float32)
LEVELS = ["low", "middle", "high"]


def rounding(name: str, value: Any) -> float:
    """Computes the allowed difference of a loss or a metric; versions of Keras sum differently.

    A loss has at most 36 positive terms, three per example. Other terms are below 4. An area under
    a curve has 199 trapezoids, whose sum is below 1.
    """
    if name.startswith("auc"):
        return allowed(n_terms=199, steps=0, scale=1.0)
    return allowed(n_terms=36, steps=0, scale=max(4.0, float(value)))


def tensors(labels: Any) -> Any:
    if isinstance(labels, dict):
        return {name: tf.constant(value) for name, value in labels.items()}
    return labels if isinstance(labels, tf.SparseTensor) else tf.constant(labels)


def absolute_difference(labels: Any, logits: Any) -> Any:
    return tf.abs(labels - tf.sigmoid(logits))


def squares_by_weight(labels: Any, logits: Any, features: Any) -> Any:
    return features["weight"][:, tf.newaxis] * tf.square(labels - logits)


HEADS: dict[str, tuple[Any, Any, int, Any]] = {
    "two classes": (
        canned.BinaryClassHead(weight_column="weight", label_vocabulary=LEVELS[:2]),
        ours.BinaryClassHead(label_vocabulary=LEVELS[:2], weight_column="weight"),
        *(1, RNG.choice(LEVELS[:2], 12)),
    ),
    "two ids, summed": (
        canned.BinaryClassHead(loss_reduction="sum"),
        ours.BinaryClassHead(reduction="sum"),
        *(1, RNG.integers(2, size=[12, 1])),
    ),
    "three classes": (
        canned.MultiClassHead(3, label_vocabulary=LEVELS),
        ours.MultiClassHead(3, label_vocabulary=LEVELS),
        *(3, RNG.choice(LEVELS, 12)),
    ),
    "three ids": (
        canned.MultiClassHead(3, weight_column="weight"),
        ours.MultiClassHead(3, weight_column=ours.Numeric("weight")),
        *(3, RNG.integers(3, size=12)),
    ),
    "numbers": (
        canned.RegressionHead(2, weight_column="weight"),
        ours.RegressionHead(2, weight_column="weight"),
        *(2, RNG.normal(size=[12, 2])),
    ),
    "thresholds and a name": (
        canned.BinaryClassHead(weight_column="weight", thresholds=[0.3, 0.75], name="rain"),
        ours.BinaryClassHead(weight_column="weight", thresholds=[0.3, 0.75], suffix="rain"),
        *(1, RNG.integers(2, size=12)),
    ),
    "a loss of the program": (
        canned.BinaryClassHead(loss_fn=absolute_difference),
        ours.BinaryClassHead(loss_fn=absolute_difference),
        *(1, RNG.integers(2, size=12)),
    ),
    "a loss of the features": (
        canned.RegressionHead(2, loss_fn=squares_by_weight, inverse_link_fn=tf.tanh, name="price"),
        ours.RegressionHead(2, loss_fn=squares_by_weight, inverse_link_fn=tf.tanh, suffix="price"),
        *(2, RNG.normal(size=[12, 2])),
    ),
    "several classes": (
        canned.MultiLabelHead(3, weight_column="weight", thresholds=[0.4]),
        ours.MultiLabelHead(3, weight_column="weight", thresholds=[0.4]),
        *(3, RNG.integers(2, size=[12, 3])),
    ),
    "several names": (
        canned.MultiLabelHead(
            3, label_vocabulary=LEVELS, classes_for_class_based_metrics=["low", 2]
        ),
        ours.MultiLabelHead(3, LEVELS, classes_for_class_based_metrics=["low", 2]),
        *(3, tf.sparse.from_dense(RNG.choice(["", *LEVELS], [12, 2]))),
    ),
    "counts": (
        canned.PoissonRegressionHead(weight_column="weight"),
        ours.PoissonRegressionHead(weight_column="weight"),
        *(1, RNG.integers(5, size=12)),
    ),
    "two counts, without a constant": (
        canned.PoissonRegressionHead(2, compute_full_loss=False, loss_reduction="sum"),
        ours.PoissonRegressionHead(2, compute_full_loss=False, reduction="sum"),
        *(2, RNG.integers(5, size=[12, 2])),
    ),
    "probabilities": (
        canned.LogisticRegressionHead(weight_column="weight"),
        ours.LogisticRegressionHead(weight_column="weight"),
        *(1, RNG.uniform(size=[12, 1])),
    ),
    "two heads": (
        canned.MultiHead(
            [canned.BinaryClassHead(name="rain"), canned.RegressionHead(2, name="price")],
            [1.0, 0.5],
        ),
        ours.MultiHead(
            [ours.BinaryClassHead(suffix="rain"), ours.RegressionHead(2, suffix="price")],
            [1.0, 0.5],
        ),
        *(3, {"rain": RNG.integers(2, size=12), "price": RNG.normal(size=[12, 2])}),
    ),
}


@pytest.mark.parametrize("what", HEADS)
def test_a_head_has_the_numbers_of_the_canned_one(what: str) -> None:
    """Predictions are equal, and losses and metrics differ only by the rounding of sums.

    So it is with a head that is made from the config of another one.
    """
    old, original, units, labels = HEADS[what]
    new = type(original).from_config(original.get_config())
    logits = tf.constant(RNG.normal(size=[12, units]).astype(np.float32))
    features = {"weight": tf.constant(WEIGHTS)}
    labels = tensors(labels)

    expected = old.loss(labels, logits, features)
    atol = rounding("loss", expected)
    for head in (original, new):
        np.testing.assert_allclose(head.loss(labels, logits, features), expected, rtol=0, atol=atol)
    there, here = old.predictions(logits), new.predictions(logits)
    assert list(here) == list(there)
    for key, value in there.items():
        np.testing.assert_array_equal(here[key], value, err_msg=key)
    metrics = old.update_metrics(old.metrics(), features, logits, labels)
    new.update_metrics(labels, logits, features)
    results = new.results()
    assert {*results} == {*metrics}
    for key, metric in metrics.items():
        wanted = metric.result()
        atol = rounding(key, wanted)
        np.testing.assert_allclose(results[key], wanted, rtol=0, atol=atol, err_msg=key)


@pytest.mark.parametrize("reduction", ["MEAN", "SUM_BY_NONZERO_WEIGHTS"])
@pytest.mark.parametrize("is_weighted", [True, False])
def test_a_reduction_is_that_of_tensorflow_1(reduction: str, is_weighted: bool) -> None:
    """A reduction gives TensorFlow 1's loss for two numbers per example, with weights of 0 too."""
    labels, logits = (RNG.normal(size=[12, 2]).astype(np.float32) for _ in range(2))
    weights = np.where(WEIGHTS > 1.0, WEIGHTS, 0.0) if is_weighted else None
    column = "weight" if is_weighted else None
    head = ours.RegressionHead(2, weight_column=column, reduction=reduction.lower())
    loss = head.loss(tf.constant(labels), tf.constant(logits), {"weight": weights})
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        expected = session.run(
            tf.compat.v1.losses.mean_squared_error(
                *(labels, logits, 1.0 if weights is None else weights[:, np.newaxis]),
                reduction=getattr(tf.compat.v1.losses.Reduction, reduction),
            )
        )
    np.testing.assert_allclose(loss, expected, rtol=0, atol=rounding("loss", expected))


def test_a_v1_auc_is_that_of_tensorflow_1() -> None:
    labels, chances = RNG.integers(2, size=[64, 1]), RNG.uniform(size=[64, 1]).astype(np.float32)
    head = ours.BinaryClassHead(v1_auc=True)
    logits = np.log(chances / (1 - chances))
    head.update_metrics(tf.constant(labels), tf.constant(logits))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        ops = {
            "auc": tf.compat.v1.metrics.auc(labels, chances),
            "auc_precision_recall": tf.compat.v1.metrics.auc(labels, chances, curve="PR"),
        }
        session.run(tf.compat.v1.local_variables_initializer())
        session.run([update for _, update in ops.values()])
        expected = session.run({key: value for key, (value, _) in ops.items()})
    for key, value in expected.items():
        atol = rounding(key, value)
        np.testing.assert_allclose(head.results()[key], value, rtol=0, atol=atol, err_msg=key)


def test_a_label_out_of_range_is_an_error() -> None:
    head = ours.BinaryClassHead(label_vocabulary=["no", "yes"])
    with pytest.raises(tf.errors.InvalidArgumentError, match="Labels must be in"):
        head.loss(tf.constant(["maybe"]), tf.zeros([1, 1]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ours.BinaryClassHead(label_vocabulary=["no"]), "has 1 names for 2 classes"),
        (lambda: ours.RegressionHead(reduction="none"), "reduction"),
        (lambda: ours.BinaryClassHead(thresholds=[1.0]), r"`thresholds`: \[1.0\]"),
        (lambda: ours.MultiHead([ours.RegressionHead()]), "suffixes"),
        (
            lambda: ours.MultiHead([ours.RegressionHead(suffix="a")], [1.0, 2.0]),
            "2 weights for 1 heads",
        ),
        (
            lambda: ours.MultiLabelHead(3, classes_for_class_based_metrics=[3]),
            "3 is not one of the classes",
        ),
    ],
)
def test_settings_that_are_not_possible_are_refused(make: Any, message: str) -> None:
    with pytest.raises(errors.InvalidSpec, match=message):
        make()


def test_what_does_not_fit_a_head_is_refused() -> None:
    """A loss function must return a loss per example, and every head needs labels."""
    logits = tf.zeros([2, 1])
    head = ours.BinaryClassHead(loss_fn=lambda labels, logits: tf.reduce_mean(logits))
    with pytest.raises(errors.InvalidInput, match=r"`loss_fn` returned losses of shape \(\)"):
        head.loss(tf.zeros([2]), logits)
    both = ours.MultiHead([ours.RegressionHead(suffix="a")])
    with pytest.raises(errors.InvalidInput, match=r"no labels for heads \['a'\]"):
        both.loss({"b": tf.zeros([2])}, logits)


def test_a_baseline_has_the_same_logits_for_all() -> None:
    """The first feature, which is sparse here, gives the number of examples."""
    layer = ours.Baseline(3, name="baseline")
    features = {"a": tf.sparse.from_dense([[1], [2]]), "b": tf.zeros([2, 5])}
    assert layer(features).shape == [2, 3]
    (bias,) = layer.weights
    assert bias.name.partition(":")[0].rpartition("/")[2] == "bias"
    layer.set_weights([np.float32([1.0, 2.0, 3.0])])
    np.testing.assert_array_equal(layer(features), [[1.0, 2.0, 3.0]] * 2)


def test_signatures_take_examples_or_what_is_sent() -> None:
    """Signatures for classes and regressions only take Examples, as with estimators."""
    head = ours.BinaryClassHead()
    signatures = head.signatures(head.predictions(tf.zeros([2, 1])))
    examples = {"examples": tf.TensorSpec([None], tf.string)}
    numbers = {"x": tf.TensorSpec([None], tf.float32)}
    takes = {name: list(request_of(each, examples) or ()) for name, each in signatures.items()}
    assert takes == {
        "serving_default": ["inputs"],
        "classification": ["inputs"],
        "regression": ["inputs"],
        "predict": ["examples"],
    }
    assert [*outputs_of(signatures["classification"])] == ["classes", "scores"]
    left = [name for name, each in signatures.items() if request_of(each, numbers) is not None]
    assert left == ["predict"]


def test_signatures_of_several_heads_are_those_of_each() -> None:
    """Each head has signatures below its name, and the first head provides the default one."""
    head = ours.MultiHead([ours.RegressionHead(2, suffix="wage"), ours.BinaryClassHead(suffix="a")])
    signatures = head.signatures(head.predictions(tf.zeros([2, 3])))
    of_wage = {"wage", "wage/regression", "wage/predict"}
    of_a = {"a", "a/classification", "a/regression", "a/predict"}
    assert {*signatures} == {"serving_default", "predict", *of_wage, *of_a}
    assert [*outputs_of(signatures["serving_default"])] == ["outputs"]
    assert {"wage/predictions", "a/logistic"} <= {*outputs_of(signatures["predict"])}


def test_a_linear_model_sums_weights_and_numbers() -> None:
    """The combiner applies, and each column has its own variable, in the order of names."""
    job = preprocessing.VocabularyList("job", ("a", "b"))
    hobbies = preprocessing.Weighted(preprocessing.Identity("hobbies", 4), "share")
    pair = ours.Numeric("pair", lambda x: x / 2.0, shape=2)
    layer = ours.LinearFeatures([job, hobbies, pair], units=2, sparse_combiner="mean")
    features = {
        "job": tf.constant(["b", "none"]),
        "hobbies": tf.constant([[1, 3], [2, -1]]),
        "share": tf.constant([[1.0, 3.0], [2.0, 0.0]]),
        "pair": tf.constant([[2.0, 4.0], [6.0, 8.0]]),
    }
    np.testing.assert_array_equal(layer(features), np.zeros([2, 2]))
    names = [each.name.partition(":")[0].rpartition("/")[2] for each in layer.weights]
    assert names == [
        "hobbies_weighted_by_share.weights",
        *("job.weights", "pair.weights", "bias_weights"),
    ]
    values = [np.asarray(RNG.normal(size=each.shape), np.float32) for each in layer.weights]
    layer.set_weights(values)
    of_hobbies, of_job, of_pair, bias = map(np.float64, values)
    first = (of_hobbies[1] + 3 * of_hobbies[3]) / 4 + of_job[1] + [1.0, 2.0] @ of_pair + bias
    second = of_hobbies[2] + [3.0, 4.0] @ of_pair + bias
    # At most six weights, by factors that add up to at most 9: a mean, a row, 3 and 4, and a bias.
    largest = max(np.abs(each).max() for each in values)
    atol = allowed(n_terms=6, steps=0, scale=9.0 * largest)
    np.testing.assert_allclose(layer(features), [first, second], rtol=0, atol=atol)


def test_a_linear_model_takes_no_table() -> None:
    column = ours.PlainEmbedding(preprocessing.Identity("a", 3), 2)
    with pytest.raises(errors.WrongType, match="not a column of a linear model"):
        ours.LinearFeatures([column])


def test_the_features_of_examples_are_those_of_feature_columns() -> None:
    """`parse_example_spec` equals `make_parse_example_spec` of the original feature columns."""
    fc = tf.feature_column
    job = fc.categorical_column_with_vocabulary_list("job", ["a"])
    ages = fc.bucketized_column(fc.numeric_column("age", default_value=0), [20.0])
    old = [
        fc.numeric_column("pair", shape=(2,), default_value=(0.0, 1.0)),
        fc.numeric_column("square", shape=(2, 2), default_value=3, dtype=tf.int64),
        fc.indicator_column(ages),
        fc.embedding_column(fc.categorical_column_with_identity("id", 3), 2),
        fc.indicator_column(fc.crossed_column([job, "town"], 9)),
        fc.indicator_column(fc.weighted_categorical_column(job, "share", tf.int64)),
    ]
    new_job = preprocessing.VocabularyList("job", ("a",))
    new = [
        ours.Numeric("pair", shape=(2,), default_value=(0.0, 1.0)),
        ours.Numeric("square", shape=(2, 2), default_value=3, dtype=tf.int64),
        ours.Indicator(ours.bucketized_column(ours.Numeric("age", default_value=0), [20.0])),
        ours.PlainEmbedding(preprocessing.Identity("id", 3), 2),
        preprocessing.Crossed((new_job, "town"), 9),
        preprocessing.Weighted(new_job, "share", tf.int64),
    ]
    assert ours.parse_example_spec(new) == fc.make_parse_example_spec(old)
    with pytest.raises(errors.InvalidSpec, match="Feature 'age'"):
        ours.parse_example_spec([ours.Numeric("age"), ours.Numeric("age", shape=3)])
