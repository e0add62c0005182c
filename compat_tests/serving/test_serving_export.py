"""Traced lookups, and SavedModels with them, contain only TensorFlow's own ops."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pathlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tf2_engine
from compat_tests.support.served import served
from compat_tests.support.serving_inputs import (
    DIM,
    IDS,
    KINDS,
    LOOKED_UP,
    ROWS,
    SPARSE,
    TABLE,
    WEIGHTS,
    config,
    in_shards,
    outcome,
    stock,
)
from tf2_engine import Adagrad, EngineSpec, FeatureSpec, TableSpec
from tf2_engine.serving import cpu_embedding_lookup

# --- Functions ----------------------------------------------------------------------------------

UNKNOWN = {
    tf.Tensor: lambda value: tf.TensorSpec([None] * value.shape.rank, value.dtype),
    tf.SparseTensor: lambda value: tf.SparseTensorSpec([None] * value.shape.rank, value.dtype),
    tf.RaggedTensor: lambda value: tf.RaggedTensorSpec(
        [None, None], value.dtype, row_splits_dtype=value.row_splits.dtype
    ),
}


def spec_of(value: Any) -> Any:
    return next(make(value) for kind, make in UNKNOWN.items() if isinstance(value, kind))


@functools.cache
def traced(name: str) -> tuple[Any, list[Any]]:
    """Returns a function of ids and weights, for any sizes, and a batch for it."""
    kind = KINDS[name]
    feature_config = config(kind, "sqrtn")
    arguments = [kind.features()]
    if kind.weighted:
        arguments.append(kind.weights(WEIGHTS["weighted"]))
    shards = tuple(map(tf.Variable, in_shards(2)))

    def lookup(ids: Any, weight: Any = None) -> Any:
        weights = None if weight is None else {"n": {"x": weight}}
        return cpu_embedding_lookup({"n": {"x": ids}}, weights, {"users": shards}, feature_config)[
            "n"
        ]["x"]

    function = tf.function(lookup, input_signature=[spec_of(value) for value in arguments])
    return function, arguments


@pytest.mark.filterwarnings("ignore:.*max_sequence_length.*is ignored")
@pytest.mark.parametrize("name", LOOKED_UP)
def test_a_traced_lookup_is_the_eager_one(name: str) -> None:
    """A function traced without sizes returns what the eager call returns, from two shards.

    Where an `output_shape` folds samples, it takes each row for a sample: nothing tells otherwise.
    """
    kind = KINDS[name]
    values = WEIGHTS["weighted"] if kind.weighted else None
    feature_config = config(kind, "sqrtn")
    eager = outcome(cpu_embedding_lookup, kind.features(), kind.weights(values), feature_config)
    function, arguments = traced(name)

    activations = function(*arguments)

    if name in ("ragged, folded", "ragged, flat sequence by output_shape"):
        assert activations.shape != eager.shape
        return
    np.testing.assert_array_equal(eager, activations)
    assert function.get_concrete_function().structured_outputs.shape[-1] == DIM


_PLAIN = """
    AddV2 Assert Cast ConcatV2 Const DivNoNan DynamicPartition EnsureShape Equal Fill FloorDiv
    FloorMod GatherV2 Greater GreaterEqual Identity If Less LogicalAnd LogicalNot LogicalOr Max
    Maximum Min Mul NoOp Pack ParallelDynamicStitch Placeholder Prod RaggedTensorToSparse Range
    Reshape ResourceGather Select SelectV2 Shape Size SparseReshape Sqrt Square Squeeze StridedSlice
    Sub UnsortedSegmentSum UpperBound Where
"""
PLAIN = frozenset(_PLAIN.split())
"""Ops that any TensorFlow runtime has, TensorFlow Serving among them."""


def op_types(function: Any) -> set[str]:
    graph = function.get_concrete_function().graph.as_graph_def()
    nodes = itertools.chain(graph.node, *(inner.node_def for inner in graph.library.function))
    names = {inner.signature.name for inner in graph.library.function}
    return {node.op for node in nodes} - names


@pytest.mark.filterwarnings("ignore:.*max_sequence_length.*is ignored")
def test_a_traced_lookup_holds_plain_ops() -> None:
    """The ops of all kinds of lookups are those on the list: none is of a TPU, none our own."""
    types: set[str] = set()
    for name in LOOKED_UP:
        types |= op_types(traced(name)[0])

    assert types == PLAIN, (sorted(types - PLAIN), sorted(PLAIN - types))


# --- Export -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Export:
    """A model to export, the arguments of its signature, and the expected outputs."""

    model: tf.Module
    signature: Any
    inputs: dict[str, Any]
    wanted: Any


def pull(step: int, activation: Any) -> Any:
    """Returns the gradient of a loss with another target for the activation at every step."""
    return activation - 0.5 * step


def trained(feature_config: Any, features: Any, steps: int = 3, **options: Any) -> Any:
    """Returns an engine after some steps of Adagrad on one batch per core."""
    optimizer = None if isinstance(feature_config, EngineSpec) else Adagrad(0.3)
    engine = tf2_engine.TPUEmbedding(feature_config, optimizer, **options)
    cores = options.get("num_cores", 1)
    for step in range(steps):
        engine.enqueue([features] * cores if cores > 1 else features)
        activations = engine.dequeue()
        engine.apply_gradients(tf.nest.map_structure(functools.partial(pull, step), activations))
    return engine


def small_model(**options: Any) -> tuple[Any, Any]:
    """Returns an engine with one table, and a function that looks up in it."""
    feature_config = {"x": stock.FeatureConfig(stock.TableConfig(ROWS, DIM, name="users"))}
    engine = trained(feature_config, {"x": tf.constant([1, 2])}, **options)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])
    def serve(ids: Any) -> Any:
        tables = engine.embedding_tables
        return {"activations": cpu_embedding_lookup({"x": ids}, None, tables, feature_config)["x"]}

    return engine, serve


def pipelined_model() -> Export:
    """Returns a model whose engine has an update pending when it is exported."""
    engine, serve = small_model(pipeline_execution_with_tensor_core=True)
    before = engine.tables["users"].variables["parameters"][0].numpy()
    model = tf.Module()
    model.embedding = engine
    return Export(model, serve, {"ids": np.arange(ROWS)}, (engine, before))


def model_of_examples() -> Export:
    """Returns a model of a mod-partitioned job on three hosts, which reads serialized Examples."""
    tables = (TableSpec("users", ROWS, DIM, combiner="mean"), TableSpec("items", 2, 2))
    engine_spec = EngineSpec(
        tuple(dataclasses.replace(table, optimizer=Adagrad(0.3)) for table in tables),
        (
            FeatureSpec("bag", "users"),
            FeatureSpec("history", "users", max_sequence_length=2),
            FeatureSpec("item", "items"),
        ),
        partition_strategy="mod",
    )
    batch = {
        "bag": SPARSE(IDS, tf.int64),
        "history": SPARSE(IDS, tf.int64),
        "item": tf.constant([1, 0, 1, 1]),
    }
    engine = trained(engine_spec, batch, num_hosts=3, num_cores=3)
    model = tf.Module()
    model.embedding = engine

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
    def serve(examples: Any) -> Any:
        features = tf.io.parse_example(
            examples,
            {
                "bag": tf.io.VarLenFeature(tf.int64),
                "history": tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64),
                "item": tf.io.FixedLenFeature([], tf.int64),
            },
        )
        activations = cpu_embedding_lookup(features, None, engine.embedding_tables, engine_spec)
        flat = tf.reshape(activations["history"], [-1, 2 * DIM])
        return {"activations": tf.concat([activations["bag"], flat, activations["item"]], 1)}

    bags, items = [[4, 1], [], [7, 7, 0]], [1, 0, 1]
    examples = [
        tf.train.Example(
            features=tf.train.Features(
                feature={
                    key: tf.train.Feature(int64_list=tf.train.Int64List(value=values))
                    for key, values in (("bag", bag), ("history", bag), ("item", [item]))
                }
            )
        ).SerializeToString()
        for bag, item in zip(bags, items, strict=True)
    ]
    wanted = serve(tf.constant(examples))["activations"].numpy()
    assert (wanted[1, : 3 * DIM] == 0).all()
    return Export(model, serve, {"examples": np.array(examples, object)}, wanted)


def model_of_arrays() -> Export:
    """Returns a model whose table is part of the graph."""
    feature_config = config(KINDS["dense"])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, name="ids")])
    def serve(ids: Any) -> Any:
        activations = cpu_embedding_lookup(
            {"n": {"x": ids}}, None, {"users": TABLE}, feature_config
        )
        return {"activations": activations["n"]["x"]}

    return Export(tf.Module(), serve, {"ids": np.arange(ROWS)}, TABLE)


def test_an_export_needs_nothing_but_tensorflow(tmp_path: pathlib.Path) -> None:
    """A process that imports TensorFlow alone computes the same from the exports, to the bit."""
    for name, export in (
        ("pipelined", pipelined_model()),
        ("examples", model_of_examples()),
        ("arrays", model_of_arrays()),
    ):
        tf.saved_model.save(export.model, str(tmp_path / name), signatures=export.signature)
        wanted = export.wanted
        if name == "pipelined":
            engine, before = wanted
            wanted = engine.tables["users"].variables["parameters"][0].numpy()
            assert np.abs(wanted - before).max() > 0.01
            engine.retrieve()
            (rows,) = engine.tables["users"].variables["parameters"]
            np.testing.assert_array_equal(wanted, rows)
        (answer,) = served([tmp_path / name], export.inputs, tmp_path)
        np.testing.assert_array_equal(answer["activations"], wanted, err_msg=name)


def test_an_export_holds_the_parameters_alone(tmp_path: pathlib.Path) -> None:
    """The variables of an export are the parameters of tables; slots are not among them."""
    model = tf.Module()
    model.embedding, serve = small_model()

    tf.saved_model.save(model, str(tmp_path), signatures=serve)

    saved = dict(tf.train.list_variables(str(tmp_path / "variables" / "variables")))
    saved.pop("_CHECKPOINTABLE_OBJECT_GRAPH")
    assert saved == {"embedding/users/.ATTRIBUTES/VARIABLE_VALUE": [ROWS, DIM]}


def test_an_engine_that_is_not_part_of_the_model_is_refused(tmp_path: pathlib.Path) -> None:
    """TensorFlow names the table and says that it must be an attribute of what is exported."""
    engine, serve = small_model()

    with pytest.raises(AssertionError, match=r"attribute of a tracked object(.|\n)*users_0"):
        tf.saved_model.save(tf.Module(), str(tmp_path), signatures=serve)
    assert engine.embedding_tables
