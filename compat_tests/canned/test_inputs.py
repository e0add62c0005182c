"""numpy_input_fn and pandas_input_fn: the rows that they feed, and the inputs that they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas
import pytest
import tensorflow.compat.v1 as tf

from compat_tests.conftest import HAS_STOCK
from estimator_bridge import errors, estimator
from estimator_bridge.estimator import inputs

if HAS_STOCK:
    from compat_tests.support import stock

X = {"b": np.arange(10, 15), "a": np.arange(5, dtype=np.float32).reshape(5, 1)}
Y = np.arange(100, 105)


def batches(input_fn: Callable[[], Any], most: int = 20) -> list[Any]:
    """Returns the batches of an input_fn, until the input ends."""
    results = []
    with tf.Graph().as_default():
        tensors = input_fn()
        with tf.train.MonitoredSession() as session:
            while not session.should_stop() and len(results) < most:
                results.append(session.run(tensors))
    return results


def test_batches_cross_epochs_and_the_last_one_is_smaller() -> None:
    """Rows come in order, epoch after epoch; what is left at the end is a batch too."""
    fed = batches(inputs.numpy_input_fn(X, Y, batch_size=4, num_epochs=2, shuffle=False))

    assert [labels.tolist() for _, labels in fed] == [
        [100, 101, 102, 103],
        [104, 100, 101, 102],
        [103, 104],
    ]
    assert all(list(features) == ["a", "b"] for features, _ in fed)
    assert fed[1][0]["a"].tolist() == [[4.0], [0.0], [1.0], [2.0]]


def test_without_epochs_the_rows_never_end() -> None:
    fed = batches(inputs.numpy_input_fn(Y, batch_size=4, num_epochs=None, shuffle=False), 7)

    assert len(fed) == 7
    assert {len(batch) for batch in fed} == {4}


def test_shuffled_rows_are_all_rows() -> None:
    """With shuffle each row comes once in an epoch, with its own label."""
    fed = batches(inputs.numpy_input_fn(X, {"y": Y}, batch_size=2, shuffle=True))

    pairs = [
        pair for features, labels in fed for pair in zip(features["b"], labels["y"], strict=True)
    ]
    assert sorted(pairs) == [(10 + row, 100 + row) for row in range(5)]


def frame_of(index: list[int]) -> pandas.DataFrame:
    return pandas.DataFrame({"a": [1.0, 2.0, 3.0], "b": ["x", "y", "z"]}, index)


FRAME = frame_of([7, 8, 9])


def test_a_frame_is_fed_with_its_labels() -> None:
    """Columns of a DataFrame are features; labels are a Series, or a DataFrame with its names."""
    options = {"batch_size": 2, "shuffle": False}
    one = batches(inputs.pandas_input_fn(FRAME, FRAME["a"] * 10, **options))
    two = batches(inputs.pandas_input_fn(FRAME, FRAME[["a"]] * 10, **options))

    assert [labels.tolist() for _, labels in one] == [[10.0, 20.0], [30.0]]
    assert one[0][0]["b"].tolist() == [b"x", b"y"]
    assert [list(labels) for _, labels in two] == [["a"], ["a"]]
    assert two[1][0]["a"].tolist() == [3.0]
    assert two[1][1]["a"].tolist() == [30.0]
    assert list(FRAME.columns) == ["a", "b"]


FRAMES: dict[str, tuple[Any, Any, dict[str, Any], type[Exception], str]] = {
    "an index": (FRAME, frame_of([1, 2, 4])["a"], {}, ValueError, "Index for x and y are mismatch"),
    "a target": (
        FRAME,
        FRAME["a"],
        {"target_column": "b"},
        ValueError,
        "='b' is also the name of a feature",
    ),
    "no frame": (X, Y, {}, TypeError, "must be a pandas"),
}


@pytest.mark.parametrize("case", FRAMES)
def test_frames_that_do_not_fit_are_refused(case: str) -> None:
    """Labels with other rows, a target name that is a feature, and wrong types are refused."""
    features, labels, options, kind, words = FRAMES[case]
    with pytest.raises(kind, match=words) as caught:
        inputs.pandas_input_fn(features, labels, shuffle=True, **options)
    assert isinstance(caught.value, errors.EngineError)


def numpy_fn(*args: Any, **settings: Any) -> Callable[[Any], Any]:
    """Returns a function that calls the input_fn of a namespace."""
    return lambda side: side.inputs.numpy_input_fn(*args, **settings)()


REFUSED = {
    "no shuffle": (numpy_fn(X, Y), ValueError, "explicitly set as boolean"),
    "no arrays": (numpy_fn({}, shuffle=False), ValueError, "empty dict"),
    "no rows": (numpy_fn(np.zeros([0]), shuffle=False), ValueError, "empty"),
    "no labels": (numpy_fn(X, {}, shuffle=False), ValueError, "y cannot be empty"),
    "a list": (numpy_fn([1], shuffle=False), TypeError, "dict or array"),
    "both": (numpy_fn(X, {"a": Y}, shuffle=False), ValueError, "1 duplicate keys.*'a'"),
    "lengths": (numpy_fn(X, Y[1:], shuffle=False), ValueError, "mismatched"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_named(case: str, namespace: Any) -> None:
    """A wrong argument is an error of stock's kind with stock's key phrase, on either side."""
    call, kind, message = REFUSED[case]
    with tf.Graph().as_default(), pytest.raises(kind, match=message) as caught:
        call(namespace)
    assert namespace is not estimator or isinstance(caught.value, errors.EngineError)


def test_a_feed_that_fails_ends_the_step() -> None:
    """What a thread that fills a queue raises reaches the program."""
    data = np.arange(4)
    with tf.Graph().as_default():
        batch = inputs.numpy_input_fn(data, batch_size=2, num_epochs=None, shuffle=False)()
        runner = tf.get_collection(tf.GraphKeys.QUEUE_RUNNERS)[0]
        runner._feeds = dict.fromkeys(runner.enqueue_ops, lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError), tf.train.MonitoredSession() as session:
            session.run(batch)


@pytest.mark.stock
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_graph_has_as_many_ops_as_stocks(shuffle: bool) -> None:
    """The seeds of later ops depend on the number of the ops before them."""
    counts = []
    for namespace in (inputs, stock.ESTIMATOR.inputs):
        with tf.Graph().as_default() as graph:
            namespace.numpy_input_fn(X, Y, shuffle=shuffle)()
            counts.append([(op.name, op.type) for op in graph.get_operations()])
    assert counts[0] == counts[1]


# The columns of a DataFrame in each dtype of pandas that TensorFlow can take, and the dtype fed.
PANDAS_DTYPES = {
    "str": (["a", "b"], "O"),
    "object": (["a", "b"], "O"),
    "string": (["a", "b"], "O"),
    "Int8": ([1, 2], "i"),
    "UInt16": ([1, 2], "u"),
    "Int64": ([1, 2], "i"),
    "Float32": ([1.0, None], "f"),
    "boolean": ([True, False], "b"),
    "category": (["a", "b"], "O"),
    "Sparse[float]": ([0.0, 1.0], "f"),
}


@pytest.mark.parametrize("kind", PANDAS_DTYPES)
def test_dtypes_of_pandas_are_fed(kind: str) -> None:
    """Strings, categories and nullable numbers of pandas are fed as the values that they hold."""
    values, fed = PANDAS_DTYPES[kind]
    frame = pandas.DataFrame({"x": pandas.Series(values, ["r", "s"], dtype=kind)})
    column = batches(inputs.pandas_input_fn(frame, shuffle=False))[0]["x"]

    wanted = [each.encode() if isinstance(each, str) else each for each in values]
    assert column.dtype.kind == fed
    for one, other in zip(column, wanted, strict=True):
        assert np.isnan(one) if other is None else one == other


@pytest.mark.parametrize(
    "values, kind, words",
    [
        ([1, None], "Int64", "column 'x' has 1 missing values.*fillna"),
        (["a", None], "category", "column 'x' has 1 missing values.*fillna"),
        (["a", None], "string", "column 'x' has 1 missing values.*fillna"),
        (["2020", "2021"], "datetime64[ns]", "column 'x' of dtype datetime64.* neither numbers"),
        (["a", None], "object", "column 'x' of dtype object .* neither numbers"),
    ],
)
def test_columns_of_pandas_without_a_dtype_here_are_refused(
    values: list[Any], kind: str, words: str
) -> None:
    """Missing values that are no floats, dates and other objects are refused by column."""
    frame = pandas.DataFrame({"x": pandas.Series(values, dtype=kind)})
    with pytest.raises(errors.InvalidInput, match=words):
        batches(inputs.pandas_input_fn(frame, shuffle=False))
