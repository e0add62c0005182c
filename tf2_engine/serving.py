"""Lookups for serving: the tables are ordinary variables, the ops are TensorFlow's own.

For a function that is exported:

    @tf.function(input_signature=[...])
    def serve(features):
        return model(cpu_embedding_lookup(features, None, engine.embedding_tables, feature_config))

    model.embedding = engine  # a SavedModel holds what is reached from the object that is saved
    tf.saved_model.save(model, export_dir, signatures=serve)
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tf2_engine import batch, errors, sharding, structure, tf_compat
from tf2_engine.autograph import as_written
from tf2_engine.optimizers import SGD, Optimizer
from tf2_engine.plan import FeaturePlan, Shape, TablePlan
from tf2_engine.specs import EngineSpec
from tf2_engine.tables import PARAMETERS, Table

Path = tuple[Any, ...]


@as_written  # to convert it would take long
def cpu_embedding_lookup(inputs: Any, weights: Any, tables: Any, feature_config: Any) -> Any:
    """Looks features up and combines them, without an engine or a driver.

    With an `EngineSpec` the activations are those that the engine computes in training. With
    FeatureConfigs they are those of `tf.tpu.experimental.embedding.serving_embedding_lookup`,
    which differ from a TPU's in three points: rows are not quantized; a sparse id below 0 counts as
    absent, and so does one whose weight is not positive unless the combiner is "sum", if
    `validate_weights_and_indices` is set or the rank is not 2; and dense ids keep all their
    dimensions.

    Unlike stock's, a sample without ids is zeros whatever the settings; an id outside of its table
    fails with a message that names both; and a batch whose size is not known while a function is
    traced may have another one than the `output_shape` of a ragged feature says.

    Args:
        inputs: a nest of int32 or int64 Tensors, SparseTensors and RaggedTensors, structured as
            the config; features may be left out.
        weights: None, or the structure of `inputs` with a weight tensor or None per feature.
        tables: by name or by TableConfig the parameters of each table, [vocabulary, dim]: a
            variable, a tensor or an array, a list or tuple of shards as in
            `TPUEmbedding.embedding_tables`, or a `Table`. Shards are those of the EngineSpec's
            `partition_strategy`; with FeatureConfigs, of "div".
        feature_config: a nest of `tf.tpu.experimental.embedding.FeatureConfig`, or an EngineSpec.

    Returns:
        The structure of `inputs`, float32.
        Dense: [*ids.shape, dim]; with an EngineSpec [*ids.shape[:-1], dim] from rank 2 on.
        Sparse: [*ids.shape[:-1], dim]. Ragged: [batch, dim] or [*output_shape, dim].
        Sparse and ragged sequences: [batch, max_sequence_length, dim].

    Raises:
        InvalidInput: the input does not fit the config; the message names the feature by its path.
        WrongType: an input is no tensor, or its ids are no integers.
    """
    features = dict(_read_config(feature_config, tables))
    found = tf_compat.flatten_with_paths(inputs)
    unknown = [path for path, _ in found if path not in features]
    if unknown:
        raise errors.InvalidInput(
            f"`inputs` holds {sorted(map(_joined, unknown))}, which the feature config lacks; it "
            f"has {sorted(map(_joined, features))}."
        )
    flat_weights: list[Any] = [None] * len(found)
    if weights is not None:
        positions = tf.nest.pack_sequence_as(inputs, list(range(len(found))))
        flat_weights = structure.flatten(positions, weights, "weights")
    outputs = [
        _look_up(features[path](), batch.as_tensor(value), weight)
        for (path, value), weight in zip(found, flat_weights, strict=True)
    ]
    return tf.nest.pack_sequence_as(inputs, outputs)


serving_embedding_lookup = cpu_embedding_lookup
"""Its name in `tf.tpu.experimental.embedding`."""


@dataclasses.dataclass(frozen=True)
class _Feature:
    """One feature of a config, and the rows that it is looked up in.

    Attributes:
        name: its path in the config.
        table: what the table is; its optimizer says what a row is looked up as.
        shards: the parameters, each [rows of the shard, dim].
        strategy: "div" or "mod": which shard holds which row.
        prune: whether sparse ids below 0, and weights that are not positive, count as absent; with
            FeatureConfigs those of a rank other than 2 always do.
        out_of_range: "error" or "drop", as in `EngineSpec`.
        as_engine: whether shapes and sequences are those of the engine, or of stock's serving.
    """

    name: str
    table: TablePlan
    shards: tuple[Any, ...]
    strategy: str
    max_sequence_length: int
    output_shape: Shape | None
    prune: bool
    out_of_range: str
    as_engine: bool

    @property
    def where(self) -> str:
        """How messages name this feature."""
        return self.plan((None,)).where

    def plan(self, shape: Shape, max_sequence_length: int = 0, combiner: str = "") -> FeaturePlan:
        """Returns the plan of a lookup whose activation has `shape`, for any number of samples."""
        return FeaturePlan(
            name=self.name,
            table=dataclasses.replace(self.table, combiner=combiner or self.table.combiner),
            output_shape=(None, *shape[1:]),
            max_sequence_length=max_sequence_length,
            send_name=False,
        )


def _look_up(feature: _Feature, value: Any, weight: Any) -> Any:
    _check(feature, value, weight)
    if isinstance(value, tf.SparseTensor):
        return _sparse(feature, value, weight)
    if isinstance(value, tf.RaggedTensor):
        return _ragged(feature, value, weight)
    return _dense(feature, value)


def _dense(feature: _Feature, ids: Any) -> Any:
    kept = ids.shape
    if feature.as_engine:
        batch.output_shape(feature.name, 0, ids)  # checks that the last dimension is 1
        kept = ids.shape[:-1] if ids.shape.rank > 1 else ids.shape
    plan = feature.plan((None,))
    rows = _activations(feature, plan, batch.read_ids(plan, tf.reshape(ids, [-1]), None))
    sizes = tf.shape(ids, out_type=tf.int64)
    return _reshape(rows, sizes if kept.rank is None else sizes[: kept.rank], kept, feature)


def _sparse(feature: _Feature, value: tf.SparseTensor, weight: Any) -> Any:
    rank, length = value.shape.rank, feature.max_sequence_length
    if feature.as_engine:
        shape = feature.output_shape or batch.output_shape(feature.name, length, value)
        if None not in shape[1:]:
            return _combine(feature, value, weight, (_samples(value), *shape[1:]), length)
    if length and feature.output_shape is None and rank in (None, 2):
        return _sequence(feature, value, length)
    if length:
        warnings.warn(
            f"{feature.where}: `max_sequence_length` is ignored, because "
            f"{f'the rank of the ids is {rank}' if rank != 2 else '`output_shape` is set'}.",
            stacklevel=6,
        )
    if rank == 2:
        return _combine(feature, value, weight, (_samples(value),))
    lead = value.dense_shape[:-1]
    matrix = tf.sparse.reshape(value, tf.stack([tf.reduce_prod(lead), value.dense_shape[-1]]))
    feature = dataclasses.replace(feature, prune=not feature.as_engine)
    return _reshape(_combine(feature, matrix, weight, (None,)), lead, value.shape[:-1], feature)


def _ragged(feature: _Feature, value: tf.RaggedTensor, weight: Any) -> Any:
    batch.output_shape(feature.name, 0, value)  # checks that the rank is 2
    samples, length = _samples(value), feature.max_sequence_length
    per_row, result = _ragged_result(feature, samples)
    # There is one id per position of a sequence, and nothing to weigh or combine. A sequence of
    # length 1 is none to the engine, which combines it, and is one to stock's serving.
    if per_row > 1 or (length and not feature.output_shape and not feature.as_engine):
        rows = _sequence(feature, value.to_sparse(), per_row)
    else:
        rows = _combine(feature, value, weight, (samples,))
    return tf.reshape(rows, [-1 if size is None else size for size in result])


def _ragged_result(feature: _Feature, samples: int | None) -> tuple[int, list[int | None]]:
    """Returns how many activations each row of a ragged tensor has, and the shape of all."""
    dim, shape = feature.table.dim, feature.output_shape
    if shape is None:
        length = feature.max_sequence_length
        return length or 1, [samples, length, dim] if length else [samples, dim]
    first, *others = shape
    per_sample = math.prod(size or 1 for size in others)
    if samples is None or first is None:
        return per_sample, [None, *others, dim]
    cells = first * per_sample
    if samples == cells:
        return 1, [*shape, dim]
    if feature.as_engine:  # a batch of another size than in training
        return per_sample, [samples, *others, dim]
    if not samples or cells % samples:
        raise errors.InvalidInput(
            f"{feature.where}: {samples} ragged rows fit neither {cells} activations nor a whole "
            f"number of positions each (`output_shape` is {shape})."
        )
    return cells // samples, [*shape, dim]


def _sequence(feature: _Feature, value: tf.SparseTensor, length: int) -> Any:
    """Returns [batch, length, dim]: cut, and padded with zeros; ids at one position add up."""
    samples = _samples(value)
    indices = tf.ensure_shape(value.indices, [None, 2])
    value = tf.SparseTensor(indices, value.values, tf.ensure_shape(value.dense_shape, [2]))
    return _combine(feature, value, None, (samples, length), length, "sum")


def _samples(value: Any) -> int | None:
    """Returns the first dimension where it is known: an int, also after `disable_v2_behavior`."""
    return value.shape.as_list()[0] if value.shape.rank else None


def _combine(
    feature: _Feature,
    value: Any,
    weight: Any,
    shape: Shape,
    max_sequence_length: int = 0,
    combiner: str = "",
) -> Any:
    """Returns [*shape, dim] float32 of sparse or ragged ids."""
    plan = feature.plan(shape, max_sequence_length, combiner)
    raw = batch.read_ids(plan, value, weight)
    if feature.prune and raw.kind == "sparse" and not max_sequence_length:
        raw = _pruned(raw, plan.table.combiner)
    sizes = [-1 if size is None else size for size in shape]
    return tf.reshape(_activations(feature, plan, raw), [*sizes, feature.table.dim])


def _activations(feature: _Feature, plan: FeaturePlan, raw: batch.RawIds) -> Any:
    """Returns [cells, dim] float32: gains first, then the sum, which is the order of the device.

    The gain of "sqrtn" is a quotient, as that of "mean": a weight divided by the square root of
    the sum of squared weights. In the TensorFlow 2.8 source that this API goes back to, the ragged
    "sqrtn" makes a pair of the sum and the root where it means to divide one by the other.
    """
    found = batch.occurrences(plan, raw, feature.out_of_range)
    if len(feature.shards) == 1:
        rows = tf.gather(feature.shards[0], found.ids)
    else:
        rows = tf.compat.v1.nn.embedding_lookup(
            list(feature.shards), found.ids, partition_strategy=feature.strategy
        )
    return found.combine(plan.table.activation(rows))


def _pruned(raw: batch.RawIds, combiner: str) -> batch.RawIds:
    keep = raw.ids >= 0
    if raw.weight is not None and combiner != "sum":
        keep &= raw.weight > 0
    return dataclasses.replace(
        raw,
        ids=tf.boolean_mask(raw.ids, keep),
        index=tf.boolean_mask(raw.index, keep),
        weight=None if raw.weight is None else tf.boolean_mask(raw.weight, keep),
    )


def _reshape(rows: Any, sizes: Any, static: tf.TensorShape, feature: _Feature) -> Any:
    dim = feature.table.dim
    shaped = tf.reshape(rows, tf.concat([sizes, tf.constant([dim], sizes.dtype)], 0))
    return tf.ensure_shape(shaped, static.concatenate(dim))


def _check(feature: _Feature, value: Any, weight: Any) -> None:
    batch.check_kind(feature.where, value)
    dense = isinstance(value, (tf.Tensor, tf.Variable))
    sequence = feature.max_sequence_length > 0
    if weight is not None and dense:
        raise errors.InvalidInput(
            f"{feature.where}: weights are given, but the ids are dense. Pass ids and weights as "
            "sparse or ragged tensors, or drop the weights."
        )
    if weight is not None and type(weight) is not type(value):
        raise errors.InvalidInput(
            f"{feature.where}: weights must be of the same kind as the ids, a "
            f"{type(value).__name__}, got {type(weight).__name__}."
        )
    # In the engine a weighted sequence has a meaning: there is no combiner, but there are gains.
    if weight is not None and sequence and not feature.as_engine:
        raise errors.InvalidInput(
            f"{feature.where}: weights are given, but this is a sequence feature "
            f"(max_sequence_length={feature.max_sequence_length}), whose ids are not combined. "
            "Drop the weights, or set max_sequence_length=0."
        )
    if dense and sequence:
        raise errors.InvalidInput(
            f"{feature.where}: the ids are dense, but this is a sequence feature "
            f"(max_sequence_length={feature.max_sequence_length}). Pass a sparse or ragged tensor, "
            "or set max_sequence_length=0."
        )


def _read_config(
    config: Any, tables: Mapping[Any, Any]
) -> Iterator[tuple[Path, Callable[[], _Feature]]]:
    """Yields the path of every feature of a config, and what reads the feature if it is needed."""
    if isinstance(config, EngineSpec):
        by_name = {table.name: table for table in config.tables}
        for path, position in tf_compat.flatten_with_paths(config.structure):
            feature = config.features[position]
            yield (
                path,
                functools.partial(
                    _read_feature,
                    _joined(path) or feature.name,
                    feature,
                    by_name[feature.table],
                    feature.table,
                    tables,
                    strategy=config.partition_strategy,
                    prune=False,
                    out_of_range=config.out_of_range_ids,
                    as_engine=True,
                ),
            )
        return
    names: dict[int, str] = {}
    for path, feature in tf_compat.flatten_with_paths(config):
        # An unnamed table is called by its place among the tables, as it is in the engine.
        name = names.setdefault(id(feature.table), feature.table.name or f"table_{len(names)}")
        yield (
            path,
            functools.partial(
                _read_feature,
                _joined(path) or feature.name or "",
                feature,
                feature.table,
                name,
                tables,
                strategy="div",
                prune=feature.validate_weights_and_indices,
                out_of_range="error",
                as_engine=False,
            ),
        )


def _read_feature(
    path: str, feature: Any, table: Any, table_name: str, tables: Mapping[Any, Any], **rules: Any
) -> _Feature:
    """Reads a FeatureConfig or FeatureSpec, and finds its table in `tables`."""
    where = f"Feature {path!r} (table {table_name!r})"
    given = [
        value
        for key, value in tables.items()
        if key is table or (key if isinstance(key, str) else key.name) == table_name
    ]
    if not given:
        known = [key if isinstance(key, str) else key.name for key in tables]
        raise errors.InvalidInput(
            f"{where}: `tables` holds {known}. Add the parameters under the table's name."
        )
    shards, strategy = _shards(given[0], rules.pop("strategy"))
    shape = tf.TensorShape(feature.output_shape)
    return _Feature(
        name=path,
        table=TablePlan(
            name=table_name,
            table_id=0,
            vocabulary_size=table.vocabulary_size,
            rows=_rows(where, shards, table.vocabulary_size, table.dim),
            dim=table.dim,
            combiner=table.combiner,
            optimizer=table.optimizer if isinstance(table.optimizer, Optimizer) else SGD(),
            initializer=None,
            rate_tag=None,
            hot_id_replication=False,
            # Stock's serving leaves it to the user to quantize the variable.
            quantization=table.quantization if rules["as_engine"] else None,
        ),
        shards=shards,
        strategy=strategy,
        max_sequence_length=feature.max_sequence_length,
        output_shape=None if shape.rank is None else tuple(shape.as_list()),
        **rules,
    )


def _shards(given: Any, strategy: str) -> tuple[tuple[Any, ...], str]:
    """Returns the shards of a table and how its rows are spread over them."""
    if isinstance(given, Table):
        return given.variables[PARAMETERS], given.strategy
    if isinstance(given, tf_compat.ShardedTable):
        given = given.variables
    if isinstance(given, (list, tuple)):
        return tuple(given), strategy
    # Stock's TPUEmbedding and parameter servers have an object of several variables.
    return tuple(getattr(given, "variables", (given,))), strategy


def _rows(where: str, shards: tuple[Any, ...], vocabulary_size: int, dim: int) -> int:
    """Returns how many rows the shards hold, which must be shards of such a table."""
    shapes = [tuple(tf.TensorShape(shard.shape).as_list()) for shard in shards]
    total = sum(shape[0] for shape in shapes)
    wanted = sharding.shard_rows(total, len(shards))
    if total < vocabulary_size or shapes != [(rows, dim) for rows in wanted]:
        expected = sharding.shard_rows(max(vocabulary_size, len(shards)), len(shards))
        raise errors.InvalidInput(
            f"{where}: its parameters have the shapes {shapes}, expected "
            f"{[(rows, dim) for rows in expected]}."
        )
    return total


def _joined(path: Path) -> str:
    return "/".join(map(str, path))
