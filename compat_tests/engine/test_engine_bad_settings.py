"""Settings that the engine refuses: the message says what is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from compat_tests.support.bad_batches import VIDEOS, WATCHED
from tf2_engine import (
    SGD,
    Adagrad,
    Adam,
    EngineSpec,
    FeatureSpec,
    TableSpec,
    TPUEmbedding,
    errors,
)

CONFIG = tf.tpu.experimental.embedding


def engine(**options: Any) -> TPUEmbedding:
    """Returns an engine of one table and one feature."""
    return TPUEmbedding(EngineSpec((VIDEOS,), (WATCHED,)), **options)


def from_config(optimizer: Any) -> TPUEmbedding:
    """Returns an engine made from a configuration of TensorFlow's."""
    table = CONFIG.TableConfig(8, 2, name="videos")
    return TPUEmbedding({"watched": CONFIG.FeatureConfig(table)}, optimizer)


BAD_SETTINGS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a combiner": (
        lambda: TableSpec("videos", 8, 2, "max"),
        errors.InvalidSpec,
        "'videos'.*`combiner` must be one of sum, mean, sqrtn.*'max'",
    ),
    "no rows": (
        lambda: TableSpec("videos", 0, 2),
        errors.InvalidSpec,
        "'videos'.*`vocabulary_size` must be a positive int, got 0",
    ),
    "half a row": (
        lambda: TableSpec("videos", 0.5, 2),  # type: ignore[arg-type]
        errors.InvalidSpec,
        "'videos'.*`vocabulary_size` must be a positive int, got 0.5",
    ),
    "no columns": (
        lambda: TableSpec("videos", 8, 0),
        errors.InvalidSpec,
        "'videos'.*`dim` must be a positive int, got 0",
    ),
    "an initializer": (
        lambda: TableSpec("videos", 8, 2, initializer=0.5),  # type: ignore[arg-type]
        errors.InvalidSpec,
        "'videos'.*`initializer` must be callable, got 0.5",
    ),
    "an optimizer": (
        lambda: TableSpec("videos", 8, 2, optimizer="sgd"),  # type: ignore[arg-type]
        errors.InvalidSpec,
        "'videos'.*'sgd'.*known: .*Adagrad",
    ),
    "an optimizer of the engine": (
        lambda: from_config("sgd"),
        errors.WrongType,
        "'sgd'.*known: .*Adagrad",
    ),
    "an optimizer for a spec": (
        lambda: engine(optimizer=Adam()),
        errors.InvalidSpec,
        "`optimizer`.*EngineSpec",
    ),
    "pipelining for a spec": (
        lambda: engine(pipeline_execution_with_tensor_core=True),
        errors.InvalidSpec,
        "`pipeline_execution_with_tensor_core`.*EngineSpec",
    ),
    "no optimizer": (
        lambda: EngineSpec((TableSpec("videos", 8, 2),), (WATCHED,)),
        errors.InvalidSpec,
        "'videos' has no optimizer. Pass one",
    ),
    "an unknown table": (
        lambda: EngineSpec((VIDEOS,), (WATCHED, FeatureSpec("country", "countries"))),
        errors.InvalidSpec,
        r"'country' refers to table 'countries'.*\['videos'\]",
    ),
    "an unused table": (
        lambda: EngineSpec((VIDEOS, TableSpec("tags", 8, 2, optimizer=SGD())), (WATCHED,)),
        errors.InvalidSpec,
        "'tags' is not used by any feature. Remove it, or add a feature",
    ),
    "two tables of a name": (
        lambda: EngineSpec((VIDEOS, VIDEOS), (WATCHED,)),
        errors.InvalidSpec,
        "Multiple tables with name videos found",
    ),
    "two features of a name": (
        lambda: EngineSpec((VIDEOS,), (WATCHED, WATCHED)),
        errors.InvalidSpec,
        "Multiple features with name watched found",
    ),
    "no features": (
        lambda: TPUEmbedding({}, SGD()),
        errors.InvalidSpec,
        "feature",
    ),
    "no feature config": (
        lambda: TPUEmbedding({"watched": VIDEOS}, SGD()),
        errors.WrongType,
        "`feature_config` holds TableSpec.*not a FeatureConfig",
    ),
    "a sequence of minus one": (
        lambda: FeatureSpec("watched", "videos", max_sequence_length=-1),
        errors.InvalidSpec,
        "'watched'.*`max_sequence_length` must be an int of at least 0, got -1",
    ),
    "a partition strategy": (
        lambda: EngineSpec((VIDEOS,), (WATCHED,), partition_strategy="hash"),
        errors.InvalidSpec,
        "`partition_strategy` must be one of div, mod, got 'hash'",
    ),
    "what to do with ids out of range": (
        lambda: EngineSpec((VIDEOS,), (WATCHED,), out_of_range_ids="clip"),
        errors.InvalidSpec,
        "`out_of_range_ids` must be one of error, drop, got 'clip'",
    ),
    "a driver": (
        lambda: engine(driver="gpu"),
        errors.InvalidSpec,
        "`driver` must be one of .*, got 'gpu'",
    ),
    "three cores on two hosts": (
        lambda: engine(num_cores=3, num_hosts=2).build_for([(4,)]),
        errors.InvalidSpec,
        "3 cores cannot be spread over 2 hosts",
    ),
    "no hosts": (
        lambda: engine(num_hosts=0).build_for([(4,)]),
        errors.InvalidSpec,
        "`?num_hosts`?.*0|0 hosts",
    ),
    "no cores": (
        lambda: engine(num_cores=0).build_for([(4,)]),
        errors.InvalidSpec,
        "`?num_cores`?.*0|0 cores",
    ),
    "an open size": (
        lambda: engine().build_for([(4, None)]),
        errors.InvalidSpec,
        r"Input Feature 'watched'.*known except for its first dimension, got \(4, None\)",
    ),
    "a size of zero": (
        lambda: engine().build_for([(0,)]),
        errors.InvalidSpec,
        r"'watched'.*must be positive, got \(0,\)",
    ),
    "a size other than declared": (
        lambda: TPUEmbedding(
            EngineSpec((VIDEOS,), (FeatureSpec("watched", "videos", output_shape=(4,)),))
        ).build_for([(5,)]),
        errors.InvalidSpec,
        r"'watched'.*`output_shape` is \(4,\).*\(5,\)",
    ),
}

BAD_OPTIMIZERS: dict[str, tuple[type[Any], dict[str, Any], str]] = {
    "a rate of nan": (SGD, {"learning_rate": math.nan}, "`learning_rate`.*finite.*nan"),
    "a rate of inf": (Adam, {"learning_rate": math.inf}, "`learning_rate`.*finite.*inf"),
    "no rate": (SGD, {"learning_rate": None}, "`learning_rate`.*finite.*None"),
    "a word for a rate": (SGD, {"learning_rate": "fast"}, "`learning_rate`.*finite.*'fast'"),
    "gradient limits without accumulation": (
        SGD,
        {"clip_gradient_max": 1.0, "use_gradient_accumulation": False},
        "clip_gradient_max=1.0.*use_gradient_accumulation=False. Set it to True, or drop",
    ),
    "a gradient limit without accumulation": (
        Adam,
        {"clip_gradient_min": -1.0, "use_gradient_accumulation": False},
        "clip_gradient_min=-1.0.*use_gradient_accumulation=False. Set it to True, or drop",
    ),
    "weight limits that cross": (
        Adagrad,
        {"clip_weight_min": 1.0, "clip_weight_max": 0.5},
        "`clip_weight_min` must not exceed `clip_weight_max`, which is 0.5, got 1.0",
    ),
    "gradient limits that cross": (
        SGD,
        {"clip_gradient_min": 1.0, "clip_gradient_max": 0.5},
        "`clip_gradient_min` must not exceed `clip_gradient_max`, which is 0.5, got 1.0",
    ),
    "a weight limit of nan": (SGD, {"clip_weight_max": math.nan}, "`clip_weight_max`.*nan"),
    "a gradient limit of nan": (SGD, {"clip_gradient_min": math.nan}, "`clip_gradient_min`.*nan"),
    "a weight limit in words": (SGD, {"clip_weight_max": "one"}, "`clip_weight_max`.*'one'"),
    "a decay of nan": (SGD, {"weight_decay_factor": math.nan}, "`weight_decay_factor`.*nan"),
    "every row without accumulation": (
        Adam,
        {"lazy_adam": False, "use_gradient_accumulation": False},
        "lazy_adam=False.*use_gradient_accumulation=False. Set it to True, or keep lazy_adam=True",
    ),
    "a beta_1 of one": (Adam, {"beta_1": 1.0}, r"`beta_1` must be in \[0, 1\), got 1.0"),
    "a beta_2 below zero": (Adam, {"beta_2": -0.1}, r"`beta_2` must be in \[0, 1\), got -0.1"),
    "an epsilon of zero": (
        Adam,
        {"epsilon": 0.0},
        "`epsilon` must be positive and finite, got 0.0",
    ),
    "an accumulator of zero": (
        Adagrad,
        {"initial_accumulator_value": 0.0},
        "`initial_accumulator_value` must be positive and finite, got 0.0",
    ),
}


@pytest.mark.parametrize("make, expected, message", BAD_SETTINGS.values(), ids=BAD_SETTINGS.keys())
def test_bad_settings_are_refused(
    make: Callable[[], Any], expected: type[Exception], message: str
) -> None:
    """A setting that cannot be honoured is refused by name, with its value and a way out."""
    with pytest.raises(expected, match=f"(?s){message}"):
        make()


@pytest.mark.parametrize(
    "kind, values, message", BAD_OPTIMIZERS.values(), ids=BAD_OPTIMIZERS.keys()
)
def test_bad_optimizer_settings_are_refused(
    kind: type[Any], values: dict[str, Any], message: str
) -> None:
    """A setting of an optimizer outside its range is refused with the class, setting and value."""
    with pytest.raises(errors.InvalidSpec, match=f"`{kind.__name__}.*{message}"):
        kind(**values)


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
