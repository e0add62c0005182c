"""What the engine refuses: the message names what is wrong, and nothing has changed."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.cases.optimizers import MODES
from compat_tests.conftest import Runner
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

VIDEOS = TableSpec("videos", 8, 2, "sum", SGD(1.0))
WATCHED = FeatureSpec("watched", "videos")
CONFIG = tf.tpu.experimental.embedding


def engine(**options: Any) -> TPUEmbedding:
    """Returns an engine of one table and one feature."""
    return TPUEmbedding(EngineSpec((VIDEOS,), (WATCHED,)), **options)


def from_config(optimizer: Any) -> TPUEmbedding:
    """Returns an engine made from a configuration of TensorFlow's."""
    table = CONFIG.TableConfig(8, 2, name="videos")
    return TPUEmbedding({"watched": CONFIG.FeatureConfig(table)}, optimizer)


# Settings.

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
        "2 tables with the name 'videos'.*unique",
    ),
    "two features of a name": (
        lambda: EngineSpec((VIDEOS,), (WATCHED, WATCHED)),
        errors.InvalidSpec,
        "2 features with the name 'watched'.*unique",
    ),
    "no features": (
        lambda: TPUEmbedding({}, SGD()),
        errors.InvalidSpec,
        "feature",
    ),
    "no feature config": (
        lambda: TPUEmbedding({"watched": VIDEOS}, SGD()),
        errors.WrongType,
        "`feature_config` holds TableSpec.*no FeatureConfig",
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
        r"'watched'.*known but for its first dimension, got \(4, None\)",
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
    "an epsilon of zero": (Adam, {"epsilon": 0.0}, "`epsilon` must be positive, got 0.0"),
    "an accumulator of zero": (
        Adagrad,
        {"initial_accumulator_value": 0.0},
        "`initial_accumulator_value` must be positive, got 0.0",
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
        errors.OutOfOrder: RuntimeError,
    }.items():
        assert issubclass(kind, built_in)
        assert issubclass(kind, errors.EngineError)


# Batches.

ROWS = 8
FIRST = np.array([[row, 10.0 * row] for row in range(ROWS)], np.float32)
"""What every table starts with: small whole numbers, so that every sum is exact."""


def first_rows(shape: Any, dtype: Any) -> tf.Tensor:
    """Is the initializer of every table."""
    return tf.constant(FIRST, dtype, shape)


SPEC = EngineSpec(
    (
        TableSpec("videos", ROWS, 2, "sum", SGD(1.0), first_rows),
        TableSpec("countries", ROWS, 2, "sum", SGD(1.0), first_rows),
    ),
    (
        FeatureSpec("watched", "videos"),
        FeatureSpec("history", "videos", max_sequence_length=2),
        FeatureSpec("tags", "videos"),
        FeatureSpec("country", "countries"),
    ),
)
SHAPES = [(3,), (3, 2), (3,), (3,)]


def a_sparse(*ids: Any, rows: int = 3, dtype: Any = tf.int64) -> tf.SparseTensor:
    """Returns one id per row, the last rows empty."""
    indices = [[row, 0] for row in range(len(ids))]
    return tf.SparseTensor(indices, tf.constant(ids, dtype), [rows, 2])


def a_ragged(*ids: Any, dtype: Any = tf.int64) -> tf.RaggedTensor:
    """Returns one id per row."""
    return tf.RaggedTensor.from_row_splits(tf.constant(ids, dtype), list(range(len(ids) + 1)))


def features(**changed: Any) -> dict[str, Any]:
    """Returns a good batch but for what is changed."""
    return {
        "watched": a_sparse(1, 2),
        "history": a_sparse(3, 4),
        "tags": a_ragged(5, 6, 7),
        "country": tf.constant([0, 1, 2], tf.int64),
        **changed,
    }


def weights(**given: Any) -> dict[str, Any]:
    """Returns weights for the features named."""
    return {**dict.fromkeys(features()), **given}


def without(batch: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns the batch without a feature."""
    return {key: value for key, value in batch.items() if key != name}


class Bad(NamedTuple):
    """A batch that is refused.

    Attributes:
        features: makes it.
        error: what is raised; InvalidArgumentError where only the values can tell.
        message: what it says.
        weights: makes its weights, if it has any.
        only_when_built: whether another engine may take it as its first batch.
    """

    features: Callable[[], Any]
    error: type[Exception]
    message: str
    weights: Callable[[], Any] | None = None
    only_when_built: bool = False


AT_RUN_TIME = tf.errors.InvalidArgumentError
Q = r"\\?'"
"""A quote; in graphs it has a backslash before it."""
WATCHED_IN_VIDEOS = rf"{Q}watched{Q} \(table {Q}videos{Q}\)"
COUNTRY_IN_COUNTRIES = rf"{Q}country{Q} \(table {Q}countries{Q}\)"

BAD_BATCHES = {
    "a feature is missing": Bad(
        lambda: without(features(), "country"),
        errors.InvalidInput,
        r"`features`.*'country'.*missing: \['country'\], unknown: \[\]",
    ),
    "a feature too much": Bad(
        lambda: features(color=tf.constant([1, 2, 3])),
        errors.InvalidInput,
        r"`features`.*missing: \[\], unknown: \['color'\]",
    ),
    "a list of features": Bad(
        lambda: [tf.constant([1, 2, 3])] * 4, errors.InvalidInput, "`features`.*structure"
    ),
    "strings": Bad(
        lambda: features(country=tf.constant(["nl", "be", "lu"])),
        errors.WrongType,
        f"{COUNTRY_IN_COUNTRIES}.*int32 or int64, got string.*vocabulary",
    ),
    "sparse strings": Bad(
        lambda: features(watched=a_sparse("a", "b", dtype=tf.string)),
        errors.WrongType,
        f"{WATCHED_IN_VIDEOS}.*int32 or int64, got string.*vocabulary",
    ),
    "floats": Bad(
        lambda: features(country=tf.constant([0.0, 1.0, 2.0])),
        errors.WrongType,
        f"{COUNTRY_IN_COUNTRIES}.*int32 or int64, got float32",
    ),
    "a number": Bad(lambda: features(country=5), errors.WrongType, "'country'.*Tensor.*int"),
    "nothing": Bad(lambda: features(watched=None), errors.WrongType, "'watched'.*Tensor.*None"),
    "a list of ids": Bad(
        lambda: features(country=[0, 1, 2]), errors.InvalidInput, "`features`.*structure"
    ),
    "a scalar": Bad(
        lambda: features(country=tf.constant(1)), errors.InvalidInput, "'country'.*rank.*1"
    ),
    "dense ids in two columns": Bad(
        lambda: features(country=tf.constant([[0, 1], [1, 2], [2, 3]])),
        errors.InvalidInput,
        r"'country'.*last dimension.*must be 1.*\(3, 2\).*sparse or ragged",
    ),
    "ragged of rank 3": Bad(
        lambda: features(tags=tf.ragged.constant([[[1], [2]], [], [[3]]])),
        errors.InvalidInput,
        "'tags'.*rank 2",
    ),
    "sparse of rank 1": Bad(
        lambda: features(watched=tf.SparseTensor([[0], [1]], [1, 2], [3])),
        errors.InvalidInput,
        r"'watched'.*rank of at least 2.*\(3,\)",
    ),
    "more dense ids": Bad(
        lambda: features(country=tf.constant([0, 1, 2, 3])),
        errors.InvalidInput,
        r"'country'.*\(3,\).*\(4,\).*keep their shape",
        only_when_built=True,
    ),
    "fewer sparse rows": Bad(
        lambda: features(watched=a_sparse(1, 2, rows=2)),
        errors.InvalidInput,
        r"'watched'.*\(3,\).*\(2,\).*keep their shape",
        only_when_built=True,
    ),
    "more ragged rows": Bad(
        lambda: features(tags=a_ragged(1, 2, 3, 4)),
        errors.InvalidInput,
        r"'tags'.*\(3,\).*\(4,\).*keep their shape",
        only_when_built=True,
    ),
    "an id beyond the table": Bad(
        lambda: features(country=tf.constant([0, 1, 8])),
        AT_RUN_TIME,
        f"{COUNTRY_IN_COUNTRIES}.*rows 0 to 7.*out_of_range_ids={Q}drop{Q}.*8",
    ),
    "a sparse id below zero": Bad(
        lambda: features(watched=a_sparse(1, -5)),
        AT_RUN_TIME,
        f"{WATCHED_IN_VIDEOS}.*rows 0 to 7.*out_of_range_ids={Q}drop{Q}.*-5",
    ),
    "a coordinate outside": Bad(
        lambda: features(
            watched=tf.SparseTensor([[0, 0], [3, 0]], tf.constant([1, 2], tf.int64), [3, 2])
        ),
        AT_RUN_TIME,
        f"{WATCHED_IN_VIDEOS}.*coordinate lies outside",
    ),
    "weights for dense ids": Bad(
        features,
        errors.InvalidInput,
        f"{COUNTRY_IN_COUNTRIES}.*weights.*dense.*sparse or ragged",
        lambda: weights(country=tf.ones([3])),
    ),
    "ragged weights for sparse ids": Bad(
        features,
        errors.WrongType,
        f"{WATCHED_IN_VIDEOS}.*same kind.*SparseTensor.*RaggedTensor",
        lambda: weights(watched=a_ragged(1.0, 2.0, dtype=tf.float32)),
    ),
    "dense weights for ragged ids": Bad(
        features,
        errors.WrongType,
        "'tags'.*same kind.*RaggedTensor.*Tensor",
        lambda: weights(tags=tf.ones([3])),
    ),
    "weights in words": Bad(
        features,
        errors.WrongType,
        f"{WATCHED_IN_VIDEOS}.*weights.*string",
        lambda: weights(watched=a_sparse("a", "b", dtype=tf.string)),
    ),
    "fewer weights than ids": Bad(
        features,
        errors.InvalidInput,
        f"{WATCHED_IN_VIDEOS}.*one weight per id, got 1 weights for 2 ids",
        lambda: weights(watched=a_sparse(1.0, dtype=tf.float32)),
    ),
    "weights without a feature": Bad(
        features,
        errors.InvalidInput,
        r"`weights`.*missing: \['tags'\]",
        lambda: without(weights(), "tags"),
    ),
}


class Fixture:
    """An engine in a mode, and what tells that it is unharmed."""

    def __init__(self, mode: str, *, build: bool = True) -> None:
        self.mode = mode
        self.runner = Runner(mode)
        with self.runner.scope():
            self.embedding = TPUEmbedding(SPEC)
            if build:
                self.embedding.build_for(SHAPES)
        self._functions: dict[Callable[[], Any], Callable[[], Any]] = {}

    def call(self, function: Callable[[], Any]) -> Any:
        """Calls a function of no arguments the way the mode does; in a graph, its ops are new."""
        return self.runner.wrap(function)()

    def look_up(self) -> None:
        """Looks a good batch up, so that it waits for gradients."""
        self._anew(self._look_up)

    def apply_zeros(self) -> None:
        """Applies gradients of zeros."""
        self._anew(self._apply_zeros)

    def _again(self, function: Callable[[], Any]) -> Any:
        return self._functions.setdefault(function, self.runner.wrap(function))()

    def _anew(self, function: Callable[[], Any]) -> Any:
        # In a graph a part of a step that is run again must be made of new ops.
        return self.call(function) if self.mode == "graph" else self._again(function)

    @property
    def rows(self) -> dict[str, Any]:
        """What the tables hold."""
        return self.runner.read(
            {
                name: table.variables["parameters"][0]
                for name, table in self.embedding.tables.items()
            }
        )

    def assert_works(self) -> None:
        """Runs a good step: it sees the rows of the tables and lowers those it saw by one."""
        before = self.rows or {"videos": FIRST.copy(), "countries": FIRST.copy()}
        videos, countries, zero = before["videos"], before["countries"], np.zeros(2)
        activations, _ = self._again(self._good_step)
        for name, expected in {
            "watched": [videos[1], videos[2], zero],
            "history": [[videos[3], zero], [videos[4], zero], [zero, zero]],
            "tags": videos[[5, 6, 7]],
            "country": countries[[0, 1, 2]],
        }.items():
            np.testing.assert_array_equal(activations[name], expected, name)
        videos[1:] -= 1
        countries[:3] -= 1
        assert_same_rows(self.rows, before)

    def _look_up(self) -> Any:
        self.embedding.enqueue(features())
        return self.embedding.dequeue()

    def _apply_zeros(self) -> Any:
        return self.embedding.apply_gradients(gradients(0.0))

    def _good_step(self) -> Any:
        self.embedding.enqueue(features())
        activations = self.embedding.dequeue()
        sent = tf.nest.map_structure(ones_after, activations)
        return activations, self.embedding.apply_gradients(sent)


_fixtures: dict[str, Fixture] = {}


@contextlib.contextmanager
def unharmed(mode: str) -> Iterator[Fixture]:
    """Gives an engine to do something bad to; rows must stay and a good step must work after it.

    Tests of one mode share an engine, until one of them fails.
    """
    fixture = _fixtures.pop(mode, None) or Fixture(mode)
    before = fixture.rows
    yield fixture
    assert_same_rows(fixture.rows, before)
    fixture.assert_works()
    _fixtures[mode] = fixture


def assert_same_rows(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compares tables bit by bit."""
    for name, rows in expected.items():
        np.testing.assert_array_equal(actual[name], rows, name)


def ones_after(activation: tf.Tensor) -> tf.Tensor:
    """Returns ones, computed after the activation."""
    with tf.control_dependencies([] if tf.executing_eagerly() else [activation]):
        return tf.ones(activation.shape)


def enqueue_bad(fixture: Fixture, bad: Bad) -> None:
    """Enqueues a bad batch; in a graph what fails only when it runs is run."""

    def enqueue() -> Any:
        given = None if bad.weights is None else bad.weights()
        in_graph = fixture.mode == "graph"
        fixture.embedding.enqueue(bad.features(), given, training=not in_graph)
        return fixture.embedding.dequeue() if in_graph else None

    fixture.call(enqueue)


def in_modes(table: dict[str, Any], quick: Callable[[Any], bool]) -> list[Any]:
    """Returns test parameters: each mode with each row.

    In functions and graphs most rows are left to the full tier: what is refused while they are
    traced and built is refused by the same code as eagerly.

    Args:
        quick: says which rows are not.
    """
    return [
        pytest.param(
            mode,
            row,
            id=f"{mode}-{name}",
            marks=[] if mode == "eager" or quick(row) else [pytest.mark.full],
        )
        for mode in MODES
        for name, row in table.items()
    ]


@pytest.mark.parametrize(
    "mode, bad", in_modes(BAD_BATCHES, lambda bad: bad.error is AT_RUN_TIME or bad.only_when_built)
)
def test_bad_batches_are_refused(mode: str, bad: Bad) -> None:
    """A bad batch is refused with the feature and what it lacks, and then waits nowhere.

    The error is the same in a tf.function and in a graph as eagerly.
    """
    with unharmed(mode) as fixture:
        with pytest.raises(bad.error, match=f"(?s){bad.message}"):
            enqueue_bad(fixture, bad)
        if mode == "eager":
            with pytest.raises(errors.OutOfOrder, match="no batch waits"):
                fixture.embedding.dequeue()


BAD_FIRST_BATCHES = {
    **{name: bad for name, bad in BAD_BATCHES.items() if not bad.only_when_built},
    "more strings": Bad(
        lambda: features(country=tf.constant(["nl", "be", "lu", "fr"])),
        errors.WrongType,
        "'country'.*int32 or int64, got string",
    ),
    "more floats": Bad(
        lambda: features(watched=a_sparse(1.0, 2.0, rows=4, dtype=tf.float32)),
        errors.WrongType,
        "'watched'.*int32 or int64, got float32",
    ),
    "more ids with weights": Bad(
        lambda: features(country=tf.constant([0, 1, 2, 3])),
        errors.InvalidInput,
        "'country'.*weights.*dense",
        lambda: weights(country=tf.ones([4])),
    ),
}


@pytest.mark.parametrize("bad", BAD_FIRST_BATCHES.values(), ids=BAD_FIRST_BATCHES.keys())
def test_a_bad_first_batch_decides_nothing(bad: Bad) -> None:
    """A first batch that is refused does not fix the shapes of later ones."""
    fixture = Fixture("eager", build=False)

    with pytest.raises(bad.error, match=f"(?s){bad.message}"):
        enqueue_bad(fixture, bad)

    fixture.assert_works()


def test_weights_that_the_run_finds_too_few_are_refused() -> None:
    """While a function is traced nobody knows how many weights there are; the run does."""
    embedding = TPUEmbedding(SPEC)

    @tf.function(
        input_signature=[tf.SparseTensorSpec([3, 2], kind) for kind in (tf.int64, tf.float32)]
    )
    def enqueue(watched: Any, weight: Any) -> None:
        embedding.enqueue(features(watched=watched), {**weights(), "watched": weight})

    with pytest.raises(AT_RUN_TIME, match=f"{WATCHED_IN_VIDEOS}.*one weight per id"):
        enqueue(a_sparse(1, 2, dtype=tf.int64), a_sparse(1.0, dtype=tf.float32))


def test_several_cores_take_lists() -> None:
    """With two cores anything but a list of two is refused, by the name of the argument."""
    embedding = TPUEmbedding(SPEC, num_cores=2)

    with pytest.raises(errors.InvalidInput, match=r"`features`.*each of the 2 cores"):
        embedding.enqueue(features())
    with pytest.raises(errors.InvalidInput, match=r"`features`.*each of the 2 cores"):
        embedding.enqueue([features()] * 3)
    with pytest.raises(errors.InvalidInput, match=r"`weights`.*each of the 2 cores"):
        embedding.enqueue([features()] * 2, weights())
    with pytest.raises(errors.InvalidInput, match=r"'country'.*\(3,\).*\(4,\)"):
        embedding.enqueue([features(), features(country=tf.range(4))])
    embedding.enqueue([features()] * 2)
    embedding.dequeue()
    with pytest.raises(errors.InvalidInput, match=r"`gradients`.*each of the 2 cores"):
        embedding.apply_gradients(gradients())
    embedding.apply_gradients([gradients()] * 2)


# Shapes that only the run can tell.

OPEN = {
    "country": (
        tf.TensorSpec([None], tf.int64),
        {"more": lambda: tf.range(4, dtype=tf.int64), "fewer": lambda: tf.range(2, dtype=tf.int64)},
    ),
    "watched": (
        tf.SparseTensorSpec([None, None], tf.int64),
        {"more": lambda: a_sparse(1, 2, 3, 4, rows=4), "fewer": lambda: a_sparse(1, 2, rows=2)},
    ),
    "tags": (
        tf.RaggedTensorSpec([None, None], tf.int64),
        {"more": lambda: a_ragged(1, 2, 3, 4), "fewer": lambda: a_ragged(1, 2)},
    ),
}


@pytest.mark.parametrize("size", ["more", "fewer"])
@pytest.mark.parametrize("name", OPEN)
def test_a_function_of_open_shape_checks_the_batch(name: str, size: str) -> None:
    """A batch of another size than the engine's fails by name, though no shape is known before."""
    spec, values = OPEN[name]
    with unharmed("function") as fixture:

        @tf.function(input_signature=[spec])
        def step(value: Any) -> Any:
            fixture.embedding.enqueue(features(**{name: value}), training=False)
            return fixture.embedding.dequeue()

        with pytest.raises(AT_RUN_TIME, match=rf"(?s){Q}{name}{Q} \("):
            step(values[size]())


# Gradients.


def gradients(value: float = 1.0, **changed: Any) -> dict[str, Any]:
    """Returns gradients that are the same everywhere but for what is changed."""
    shapes = {"watched": [3, 2], "history": [3, 2, 2], "tags": [3, 2], "country": [3, 2]}
    return {**{name: tf.fill(shape, value) for name, shape in shapes.items()}, **changed}


BAD_GRADIENTS: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a row too much": (
        lambda: gradients(country=tf.ones([4, 2])),
        errors.InvalidInput,
        rf"{COUNTRY_IN_COUNTRIES}.*shape \(4, 2\), expected \[3, 2\]",
    ),
    "flattened": (
        lambda: gradients(history=tf.ones([6, 2])),
        errors.InvalidInput,
        r"'history' \(table 'videos'\).*shape \(6, 2\), expected \[3, 2, 2\]",
    ),
    "float64": (
        lambda: gradients(country=tf.ones([3, 2], tf.float64)),
        errors.WrongType,
        f"{COUNTRY_IN_COUNTRIES}.*float32, got float64",
    ),
    "ints": (
        lambda: gradients(watched=tf.ones([3, 2], tf.int32)),
        errors.WrongType,
        f"{WATCHED_IN_VIDEOS}.*float32, got int32",
    ),
    "an array": (
        lambda: gradients(watched=np.ones([3, 2], np.float32)),
        errors.WrongType,
        f"{WATCHED_IN_VIDEOS}.*a tensor, got ndarray",
    ),
    "a number": (
        lambda: gradients(country=1.0),
        errors.WrongType,
        f"{COUNTRY_IN_COUNTRIES}.*a tensor, got float",
    ),
    "a feature is missing": (
        lambda: without(gradients(), "tags"),
        errors.InvalidInput,
        r"`gradients`.*missing: \['tags'\]",
    ),
    "a feature too much": (
        lambda: gradients(color=tf.ones([3, 2])),
        errors.InvalidInput,
        r"`gradients`.*unknown: \['color'\]",
    ),
}


@pytest.mark.parametrize(
    "mode, bad",
    in_modes(BAD_GRADIENTS, lambda bad: bad[-1].startswith(COUNTRY_IN_COUNTRIES)),
)
def test_bad_gradients_are_refused(
    mode: str, bad: tuple[Callable[[], Any], type[Exception], str]
) -> None:
    """A bad gradient is refused with its feature, and the batch waits for good ones."""
    make, expected, message = bad
    with unharmed(mode) as fixture:
        before = fixture.rows
        fixture.look_up()
        with pytest.raises(expected, match=f"(?s){message}"):
            fixture.call(lambda: fixture.embedding.apply_gradients(make()))
        assert_same_rows(fixture.rows, before)
        # With zeros, so that rows stay as they are; a second time nothing waits any more.
        fixture.apply_zeros()
        out_of_order = AT_RUN_TIME if mode == "function" else errors.OutOfOrder
        with pytest.raises(out_of_order, match="no batch waits"):
            fixture.apply_zeros()


@pytest.mark.parametrize("shape", [(4, 2), (2, 2), (6, 1)], ids=str)
def test_a_gradient_of_open_shape_is_checked(shape: tuple[int, int]) -> None:
    """A gradient whose shape only the run can tell must fit all the same, whatever its size."""
    with unharmed("function") as fixture:

        @tf.function(input_signature=[tf.TensorSpec(None, tf.float32)])
        def step(gradient: tf.Tensor) -> None:
            fixture.embedding.enqueue(features())
            fixture.embedding.dequeue()
            fixture.embedding.apply_gradients(gradients(country=gradient))

        with pytest.raises(AT_RUN_TIME):
            step(tf.ones(shape))


@pytest.mark.parametrize("mode", MODES)
def test_no_gradient_counts_as_zeros(mode: str) -> None:
    """None counts as zeros, with a warning that names the feature and points at the caller."""
    fixture = Fixture(mode)

    def step() -> Any:
        fixture.embedding.enqueue(features())
        activations = fixture.embedding.dequeue()
        sent = tf.nest.map_structure(ones_after, activations)
        return fixture.embedding.apply_gradients({**sent, "country": None})

    with pytest.warns(UserWarning, match=rf"{COUNTRY_IN_COUNTRIES}.*None.*zeros") as caught:
        fixture.call(step)

    np.testing.assert_array_equal(fixture.rows["countries"], FIRST)
    np.testing.assert_array_equal(fixture.rows["videos"], FIRST - (FIRST[:, :1] > 0))
    if mode == "eager":  # In functions the code that runs is made from this file.
        assert [warning.filename for warning in caught] == [__file__]


def test_no_gradient_still_updates_rows() -> None:
    """Rows of a batch are updated by a gradient of None as by zeros: here, they decay."""
    table = TableSpec("videos", ROWS, 2, "sum", SGD(1.0, weight_decay_factor=0.5), first_rows)
    embedding = TPUEmbedding(EngineSpec((table,), (WATCHED,)))
    embedding.enqueue({"watched": tf.constant([2, 4])})
    embedding.dequeue()

    with pytest.warns(UserWarning, match="None"):
        embedding.apply_gradients({"watched": None})

    expected = FIRST.copy()
    expected[[2, 4]] /= 2
    np.testing.assert_array_equal(embedding.tables["videos"].variables["parameters"][0], expected)


def test_no_gradient_needs_a_known_size() -> None:
    """Where the batch size is open None cannot stand for zeros, and the message says what can."""
    embedding = TPUEmbedding(EngineSpec((VIDEOS,), (WATCHED,)))
    embedding.build_for([(None,)])
    embedding.enqueue({"watched": tf.constant([2, 4])})
    embedding.dequeue()

    with pytest.raises(errors.InvalidInput, match=r"'watched'.*None.*not fixed.*Pass zeros"):
        embedding.apply_gradients({"watched": None})
    embedding.apply_gradients({"watched": tf.zeros([2, 2])})


def test_indexed_slices_are_gradients() -> None:
    """A gradient that TensorFlow hands over as IndexedSlices counts as the tensor it stands for."""
    fixture = Fixture("eager")
    fixture.embedding.enqueue(features())
    fixture.embedding.dequeue()

    slices = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([1, 1]), tf.constant([3, 2]))
    fixture.embedding.apply_gradients(gradients(country=slices))

    expected = FIRST.copy()
    expected[1] -= 2
    np.testing.assert_array_equal(fixture.rows["countries"], expected)
