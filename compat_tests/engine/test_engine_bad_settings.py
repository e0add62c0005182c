"""Settings that the engine refuses: the message says what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tensorflow as tf

from compat_tests.support.bad_batches import VIDEOS, WATCHED
from tf2_engine import SGD, Adam, EngineSpec, FeatureSpec, TableSpec, TPUEmbedding, errors

CONFIG = tf.tpu.experimental.embedding


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"combiner": "max"}, "`combiner` must be one of sum, mean, sqrtn.*'max'"),
        ({"vocabulary_size": 0}, "`vocabulary_size` must be a positive int, got 0"),
        ({"vocabulary_size": 0.5}, "`vocabulary_size` must be a positive int, got 0.5"),
        ({"dim": 0}, "`dim` must be a positive int, got 0"),
        ({"initializer": 0.5}, "`initializer` must be callable, got 0.5"),
        ({"optimizer": "sgd"}, "'sgd'.*known: .*Adagrad"),
        ({"quantization": CONFIG.QuantizationConfig(3, 0.0, 1.0)}, "`quantization` must be"),
    ],
)
def test_bad_tables_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.InvalidSpec, match=f"(?s)'videos'.*{message}"):
        TableSpec(**{"name": "videos", "vocabulary_size": 8, "dim": 2, **settings})


TAGS = TableSpec("tags", 8, 2, optimizer=SGD())
COUNTRY = FeatureSpec("country", "countries")


@pytest.mark.parametrize(
    "tables, features, message",
    [
        ([TableSpec("videos", 8, 2)], [WATCHED], "'videos' has no optimizer. Pass one"),
        ([VIDEOS], [WATCHED, COUNTRY], r"'country' refers to table 'countries'.*\['videos'\]"),
        ([VIDEOS, TAGS], [WATCHED], "'tags' is not used by any feature. Remove it, or add a feat"),
        ([VIDEOS, VIDEOS], [WATCHED], "Multiple tables with name videos found"),
        ([VIDEOS], [WATCHED, WATCHED], "Multiple features with name watched found"),
    ],
)
def test_tables_and_features_that_do_not_fit_are_refused(
    tables: Sequence[TableSpec], features: Sequence[FeatureSpec], message: str
) -> None:
    with pytest.raises(errors.InvalidSpec, match=f"(?s){message}"):
        EngineSpec(tuple(tables), tuple(features))


@pytest.mark.parametrize(
    "options, shape, message",
    [
        ({"optimizer": Adam()}, (4,), "`optimizer`.*EngineSpec"),
        (
            {"pipeline_execution_with_tensor_core": True},
            (4,),
            "`pipeline_execution_with_tensor_core`.*EngineSpec",
        ),
        ({"driver": "gpu"}, (4,), "`driver` must be one of .*, got 'gpu'"),
        ({"num_cores": 3, "num_hosts": 2}, (4,), "3 cores cannot be spread over 2 hosts"),
        ({"num_hosts": 0}, (4,), "`?num_hosts`?.*0|0 hosts"),
        ({"num_cores": 0}, (4,), "`?num_cores`?.*0|0 cores"),
        ({}, (4, None), r"Input Feature 'watched'.*known except for its first .*got \(4, None\)"),
        ({}, (0,), r"'watched'.*must be positive, got \(0,\)"),
    ],
)
def test_engines_that_cannot_be_built_are_refused(
    options: dict[str, Any], shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(errors.InvalidSpec, match=f"(?s){message}"):
        TPUEmbedding(EngineSpec((VIDEOS,), (WATCHED,)), **options).build_for([shape])


def from_config(optimizer: Any) -> TPUEmbedding:
    """Returns an engine made from a configuration of TensorFlow's."""
    table = CONFIG.TableConfig(8, 2, name="videos")
    return TPUEmbedding({"watched": CONFIG.FeatureConfig(table)}, optimizer)


def declared() -> TPUEmbedding:
    """Returns an engine whose feature has an output shape."""
    return TPUEmbedding(
        EngineSpec((VIDEOS,), (FeatureSpec("watched", "videos", output_shape=(4,)),))
    )


BAD_CALLS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "an optimizer of the engine": (
        lambda: from_config("sgd"),
        errors.WrongType,
        "'sgd'.*known: .*Adagrad",
    ),
    "no features": (lambda: TPUEmbedding({}, SGD()), errors.InvalidSpec, "feature"),
    "no feature config": (
        lambda: TPUEmbedding({"watched": VIDEOS}, SGD()),
        errors.WrongType,
        "`feature_config` holds TableSpec.*not a FeatureConfig",
    ),
    "a strategy for rows": (
        lambda: EngineSpec((VIDEOS,), (WATCHED,), partition_strategy="hash"),
        errors.InvalidSpec,
        "`partition_strategy` must be one of div, mod, got 'hash'",
    ),
    "what becomes of ids": (
        lambda: EngineSpec((VIDEOS,), (WATCHED,), out_of_range_ids="clip"),
        errors.InvalidSpec,
        "`out_of_range_ids` must be one of error, drop, got 'clip'",
    ),
    "a sequence of minus one": (
        lambda: FeatureSpec("watched", "videos", max_sequence_length=-1),
        errors.InvalidSpec,
        "'watched'.*`max_sequence_length` must be an int of at least 0, got -1",
    ),
    "a size other than declared": (
        lambda: declared().build_for([(5,)]),
        errors.InvalidSpec,
        r"'watched'.*`output_shape` is \(4,\).*\(5,\)",
    ),
}


@pytest.mark.parametrize("call, expected, message", BAD_CALLS.values(), ids=BAD_CALLS.keys())
def test_bad_calls_are_refused(
    call: Callable[[], Any], expected: type[Exception], message: str
) -> None:
    with pytest.raises(expected, match=f"(?s){message}"):
        call()


def test_errors_are_what_stock_raises() -> None:
    """Every error is also of the built-in type that stock documents, and of the one family."""
    for kind, built_in in {
        errors.InvalidSpec: ValueError,
        errors.InvalidInput: ValueError,
        errors.WrongType: TypeError,
        errors.WrongKind: ValueError,
        errors.OutOfOrder: RuntimeError,
    }.items():
        assert issubclass(kind, built_in)
        assert issubclass(kind, errors.EngineError)
