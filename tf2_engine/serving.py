"""Lookups for serving, with TensorFlow's own ops on ordinary variables.

For instance, in a function that is exported:

    @tf.function(input_signature=[...])
    def serve(features):
        return model(cpu_embedding_lookup(features, None, engine.embedding_tables, feature_config))

    model.embedding = engine  # a SavedModel contains what can be reached from the saved object
    tf.saved_model.save(model, export_dir, signatures=serve)
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tf2_engine import batch, errors, sharding, small_types, structure, tf_compat
from tf2_engine.calls import frames_to_the_caller
from tf2_engine.graph_mode import do_not_convert
from tf2_engine.optimizers import SGD, Optimizer
from tf2_engine.plan import FeaturePlan, Shape, TablePlan
from tf2_engine.specs import EngineSpec
from tf2_engine.tables import PARAMETERS, Table
from tf2_engine.types import Array, Ids, Nest, Object, RaggedTensor, SparseTensor, Tensor, Variable

NestPath = tuple[str | int, ...]


@do_not_convert  # conversion would take long
def cpu_embedding_lookup(
    inputs: Nest, weights: Nest, tables: Mapping[Object, Object], feature_config: Nest
) -> Nest:
    """Looks features up and combines them, without an engine or a driver.

    With an `EngineSpec`, activations equal those of the engine in training. With FeatureConfigs,
    they equal the results of `tf.tpu.experimental.embedding.serving_embedding_lookup`. These
    results differ from the activations of a TPU:

    - Rows are not quantized.
    - The activations of dense ids keep all dimensions of the ids.
    - If the rank of sparse ids is not 2, `max_sequence_length` is ignored, with a warning.
    - If the rank of sparse ids is not 2, or `validate_weights_and_indices` is set, ids below 0 are
      ignored. In these two cases, ids without a positive weight are also ignored, unless the
      combiner is "sum".

    The activation of a sample without ids is zero. An id outside the table raises an error.

    Args:
        inputs: a nest of int32 or int64 Tensors, SparseTensors and RaggedTensors, structured like
            the config. Features may be missing.
        weights: None, or the structure of `inputs` with a weight tensor or None per feature.
        tables: maps each table's name or TableConfig to the table's parameters, [vocabulary, dim]:
            a variable, tensor or array, shards as in `TPUEmbedding.embedding_tables`, a `Table`, or
            the result of `serving_table`.
        feature_config: a nest of `tf.tpu.experimental.embedding.FeatureConfig`, or an EngineSpec.

    Returns:
        The structure of `inputs`, float32.
        Dense: [*ids.shape, dim], or [*ids.shape[:-1], dim] with an EngineSpec and rank 2 or more.
        Sparse: [*ids.shape[:-1], dim]. Ragged: [batch, dim] or [*output_shape, dim].
        Sparse and ragged sequences: [batch, max_sequence_length, dim].

    Raises:
        InvalidInput, WrongType: an input does not fit the config.
    """
    spec = feature_config if isinstance(feature_config, EngineSpec) else None
    settings = dict(_of_spec(spec) if spec else _of_feature_configs(feature_config))
    leaves = tf_compat.flatten_with_paths(inputs)
    unknown = [path for path, _ in leaves if path not in settings]
    if unknown:
        raise errors.InvalidInput(
            f"`inputs` holds {sorted(map(_joined, unknown))}, but the feature config has only "
            f"{sorted(map(_joined, settings))}."
        )
    flat_weights: list[Ids | None] = [None] * len(leaves)
    if weights is not None:
        positions = tf.nest.pack_sequence_as(inputs, list(range(len(leaves))))
        flat_weights = structure.flatten(positions, weights, "weights")
    outputs = [
        _look_up(_feature(path, settings[path], tables, spec), batch.as_tensor(ids), weight)
        for (path, ids), weight in zip(leaves, flat_weights, strict=True)
    ]
    return tf.nest.pack_sequence_as(inputs, outputs)


serving_embedding_lookup = cpu_embedding_lookup
"""The name of `cpu_embedding_lookup` in `tf.tpu.experimental.embedding`."""


_Settings = tuple[Object, Object, str]
"""A FeatureSpec or FeatureConfig, its TableSpec or TableConfig, and a name for the table."""


@dataclasses.dataclass(frozen=True)
class _Feature(FeaturePlan):
    """A feature that `cpu_embedding_lookup` looks up, named by its path in the config.

    `declared` is the `output_shape` in the config. `as_engine` selects the engine's rules for
    shapes and sequences. With `prune`, sparse ids below 0 or without a positive weight are ignored.
    """

    parameters: Table
    declared: Shape | None
    prune: bool
    out_of_range: str
    as_engine: bool


def _look_up(feature: _Feature, ids: Ids, weight: Ids | None) -> Tensor:
    _check(feature, ids, weight)
    if isinstance(ids, tf.SparseTensor):
        return _sparse(feature, ids, weight)
    if isinstance(ids, tf.RaggedTensor):
        return _ragged(feature, ids, weight)
    return _dense(feature, ids, weight)


def _dense(feature: _Feature, ids: Ids, weight: Ids | None) -> Tensor:
    shape = ids.shape
    if feature.as_engine and shape.rank != 0:  # A scalar id has no batch dimension.
        batch.output_shape(feature.name, 0, ids)  # Checks that the last dimension is 1.
        shape = ids.shape[:-1] if ids.shape.rank > 1 else ids.shape
    rows = _activations(feature, batch.read_ids(feature, tf.reshape(ids, [-1]), weight))
    sizes = tf.shape(ids, out_type=tf.int64)
    return _reshape(rows, sizes if shape.rank is None else sizes[: shape.rank], shape, feature)


def _sparse(feature: _Feature, ids: SparseTensor, weight: Ids | None) -> Tensor:
    rank, length = ids.shape.rank, feature.max_sequence_length
    if feature.as_engine:
        shape = feature.declared or batch.output_shape(feature.name, length, ids)
        if None not in shape[1:]:
            return _combine(feature, ids, weight, (batch.num_samples(ids), *shape[1:]), length)
    if length and feature.declared is None and rank in (None, 2):
        return _sequence(feature, ids, weight, length)
    if length:
        warnings.warn(
            f"{feature.where}: `max_sequence_length` is ignored, because "
            f"{f'the rank of the ids is {rank}' if rank != 2 else '`output_shape` is set'}.",
            stacklevel=frames_to_the_caller(),
        )
    if rank == 2:
        return _combine(feature, ids, weight, (batch.num_samples(ids),))
    lead = ids.dense_shape[:-1]
    matrix = tf.sparse.reshape(ids, tf.stack([tf.reduce_prod(lead), ids.dense_shape[-1]]))
    feature = dataclasses.replace(feature, prune=not feature.as_engine)
    return _reshape(_combine(feature, matrix, weight, (None,)), lead, ids.shape[:-1], feature)


def _ragged(feature: _Feature, ids: RaggedTensor, weight: Ids | None) -> Tensor:
    batch.output_shape(feature.name, 0, ids)  # Checks that the rank is 2.
    samples, length = batch.num_samples(ids), feature.max_sequence_length
    per_row, result = _ragged_result(feature, samples)
    # A sequence has one id per position, so there are no weights or combiners. The engine combines
    # the ids of a sequence of length 1. Stock's serving function does not, and takes no weights.
    as_stock = length and not feature.declared and not feature.as_engine and weight is None
    if per_row > 1 or as_stock:
        rows = _sequence(feature, ids.to_sparse(), None, per_row)
    else:
        rows = _combine(feature, ids, weight, (samples,))
    return tf.reshape(rows, [-1 if size is None else size for size in result])


def _ragged_result(feature: _Feature, samples: int | None) -> tuple[int, list[int | None]]:
    dim, shape = feature.table.dim, feature.declared
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
    if feature.as_engine:  # a batch whose size differs from training
        return per_sample, [samples, *others, dim]
    if not samples or cells % samples:
        raise errors.InvalidInput(
            f"{feature.where}: {samples} ragged rows do not fit the {cells} activations of its "
            f"`output_shape` {shape}. Each row must be for one activation, or every row "
            "for the same number of activations."
        )
    return cells // samples, [*shape, dim]


def _sequence(feature: _Feature, ids: SparseTensor, weight: Ids | None, length: int) -> Tensor:
    samples = batch.num_samples(ids)
    indices = tf.ensure_shape(ids.indices, [None, 2])
    ids = tf.SparseTensor(indices, ids.values, tf.ensure_shape(ids.dense_shape, [2]))
    if weight is None:
        table = dataclasses.replace(feature.table, combiner="sum")
        feature = dataclasses.replace(feature, table=table)
    return _combine(feature, ids, weight, (samples, length), length)


def _combine(
    feature: _Feature, ids: Ids, weight: Ids | None, shape: Shape, length: int = 0
) -> Tensor:
    feature = dataclasses.replace(
        feature, output_shape=(None, *shape[1:]), max_sequence_length=length
    )
    raw = batch.read_ids(feature, ids, weight)
    if feature.prune and raw.kind == "sparse" and not length:
        raw = _pruned(raw, feature.table.combiner)
    sizes = [-1 if size is None else size for size in shape]
    return tf.reshape(_activations(feature, raw), [*sizes, feature.table.dim])


def _activations(feature: _Feature, raw: batch.FlatBatch) -> Tensor:
    occurrences = batch.occurrences(feature, raw, feature.out_of_range)
    rows = feature.parameters.gather(PARAMETERS, occurrences.ids)
    return occurrences.combine(feature.table.activation(rows))


def _pruned(raw: batch.FlatBatch, combiner: str) -> batch.FlatBatch:
    keep = raw.ids >= 0
    if raw.weight is not None and combiner != "sum":
        keep &= raw.weight > 0
    return dataclasses.replace(
        raw,
        ids=tf.boolean_mask(raw.ids, keep),
        index=tf.boolean_mask(raw.index, keep),
        weight=None if raw.weight is None else tf.boolean_mask(raw.weight, keep),
    )


def _reshape(rows: Tensor, sizes: Tensor, static: Object, feature: _Feature) -> Tensor:
    shaped = tf.reshape(rows, tf.concat([sizes, tf.constant([feature.table.dim], sizes.dtype)], 0))
    return tf.ensure_shape(shaped, static.concatenate(feature.table.dim))


def _check(feature: _Feature, ids: Ids, weight: Ids | None) -> None:
    batch.check_kind(feature.where, ids)
    is_dense = isinstance(ids, (tf.Tensor, tf.Variable))
    is_sequence = feature.max_sequence_length > 0
    if is_dense and is_sequence:
        raise errors.InvalidInput(
            f"{feature.where}: the ids are dense, but this is a sequence feature "
            f"(max_sequence_length={feature.max_sequence_length}). Pass a sparse or ragged tensor, "
            "or set max_sequence_length=0."
        )
    if weight is None or is_dense:  # `batch.read_ids` raises an error for weights of dense ids
        return
    if type(weight) is not type(ids):
        raise errors.InvalidInput(
            f"{feature.where}: weights must be of the same kind as the ids, a "
            f"{type(ids).__name__}, got {type(weight).__name__}."
        )


def _of_spec(spec: EngineSpec) -> Iterator[tuple[NestPath, _Settings]]:
    tables = {table.name: table for table in spec.tables}
    for path, position in tf_compat.flatten_with_paths(spec.structure):
        feature = spec.features[position]
        yield path, (feature, tables[feature.table], feature.table)


def _of_feature_configs(config: Nest) -> Iterator[tuple[NestPath, _Settings]]:
    names: dict[int, str] = {}
    for path, feature in tf_compat.flatten_with_paths(config):
        table = feature.table
        # As in the engine, an unnamed table is named after its position.
        name = names.setdefault(id(table), table.name or f"table_{len(names)}")
        yield path, (feature, table, name)


def _feature(
    path: NestPath, settings: _Settings, tables: Mapping[Object, Object], spec: EngineSpec | None
) -> _Feature:
    feature, table, table_name = settings
    name = _joined(path) or feature.name or ""
    where = f"Feature {name!r} (table {table_name!r})"
    names = {key: key if isinstance(key, str) else key.name for key in tables}
    keys = [key for key in tables if key is table or names[key] == table_name]
    if not keys:
        raise errors.InvalidInput(
            f"{where}: `tables` has only {list(names.values())}. Add the table's parameters under "
            "its name."
        )
    shards, strategy = _shards(tables[keys[0]], spec.partition_strategy if spec else "div")
    plan = TablePlan(
        name=table_name,
        table_id=0,
        vocabulary_size=table.vocabulary_size,
        rows=_rows(where, shards, table.vocabulary_size, table.dim),
        dim=table.dim,
        combiner=table.combiner,
        optimizer=table.optimizer if isinstance(table.optimizer, Optimizer) else SGD(),
        # For stock's serving function, the user has to quantize the variable.
        quantization=table.quantization if spec else None,
    )
    shape = tf.TensorShape(feature.output_shape)
    return _Feature(
        name=name,
        table=plan,
        output_shape=(None,),
        max_sequence_length=feature.max_sequence_length,
        send_name=False,
        parameters=Table(plan, strategy, {PARAMETERS: shards}),
        declared=None if shape.rank is None else tuple(shape.as_list()),
        prune=not spec and feature.validate_weights_and_indices,
        out_of_range=spec.out_of_range_ids if spec else "error",
        as_engine=spec is not None,
    )


def _shards(parameters: Object, strategy: str) -> tuple[tuple[Variable, ...], str]:
    if isinstance(parameters, Table):
        if parameters.strategy == "octaves" and parameters.num_shards > 1:
            raise errors.InvalidInput(
                f'{parameters.where}: parameter servers hold its rows with layout="octaves", and '
                "lookups for serving cannot read this layout. Restore a checkpoint of this table "
                "on one machine."
            )
        return parameters.variables[PARAMETERS], parameters.strategy
    if isinstance(parameters, (list, tuple)):
        return tuple(parameters), strategy
    # One object can consist of several variables: in stock's TPUEmbedding, in ours, and on
    # parameter servers.
    return tuple(getattr(parameters, "variables", (parameters,))), strategy


def _rows(where: str, shards: Sequence[Variable], vocabulary_size: int, dim: int) -> int:
    shapes = [small_types.shape_of(shard) for shard in shards]
    total = sum(shape[0] for shape in shapes)
    if total >= vocabulary_size and shapes == _shard_shapes(total, dim, len(shards)):
        return total
    raise errors.InvalidInput(
        f"{where}: its parameters have the shapes {shapes}, expected "
        f"{_shard_shapes(max(vocabulary_size, len(shards)), dim, len(shards))}."
    )


def _shard_shapes(rows: int, dim: int, num_shards: int) -> list[tuple[int, int]]:
    return [(shard_rows, dim) for shard_rows in sharding.shard_rows(rows, num_shards)]


def _joined(path: NestPath) -> str:
    return "/".join(map(str, path))


_ELEMENTS_AT_ONCE = 1 << 22


def serving_table(
    parameters: Object, table_dtype: str = "float32", name: str | None = None
) -> Variable | tuple[Variable, ...]:
    """Copies a table's parameters for `cpu_embedding_lookup`.

        module.words = serving_table(engine.embedding_tables[words], "int8")

    Args:
        parameters: [vocabulary, dim] float32, as a variable, a tensor or an array, or shards as in
            `TPUEmbedding.embedding_tables`.
        table_dtype: "float32", "float16", "bfloat16" or "int8". Lookups always return float32;
            `small_types` gives bounds on their errors.
        name: the name of the variable, also in messages.

    Returns:
        A variable that is not trainable, [vocabulary, dim] `table_dtype`. For "int8" it is
            [vocabulary, dim + 8] uint8: a row's codes, then its scale and lowest value. If
            `parameters` are shards, a tuple of such variables.

    Raises:
        InvalidSpec: the type is unknown, or a value is out of the type's range.
        WrongType: the parameters are not a matrix of floating-point numbers.
        OutOfOrder: a graph is being built, so the parameters have no values yet.
    """
    where = f"Table {name!r}" if name else "The table"
    dtype = small_types.checked(table_dtype, [""])[""]
    with tf.init_scope():
        if not tf.executing_eagerly():
            raise errors.OutOfOrder(
                f"{where}: `serving_table` reads the table's rows, which have no values while a "
                "graph is built. Call `serving_table` eagerly. To export an estimator or a "
                "Trainer, pass `table_dtype` to its `export_saved_model` instead."
            )
        if _are_shards(parameters):
            return tuple(_variable([shard], dtype, where, name) for shard in parameters)
        shards = getattr(parameters, "variables", (parameters,))
        return _variable(shards, dtype, where, name)


def small_table(table: Table, table_dtype: str) -> Table:
    shards = tuple(
        small_variable(shard, table_dtype, table.plan.name) for shard in table.variables[PARAMETERS]
    )
    return dataclasses.replace(table, variables={PARAMETERS: shards})


def small_variable(variable: Variable, table_dtype: str, name: str) -> Variable:
    if table_dtype == "float32":
        return variable
    return _variable([variable], table_dtype, f"Table {name!r}", name)


def _variable(shards: Sequence[Object], table_dtype: str, where: str, name: str | None) -> Variable:
    matrices = [_matrix(shard, where) for shard in shards]
    rows, dim = sum(int(each.shape[0]) for each in matrices), int(matrices[0].shape[1])
    stored = np.empty(
        [rows, small_types.stored_width(dim, table_dtype)],
        small_types.stored_dtype(table_dtype).as_numpy_dtype,
    )
    done = 0
    for part in _parts(matrices, max(1, _ELEMENTS_AT_ONCE // dim)):
        stored[done : done + len(part)] = small_types.encode(part, table_dtype, where, done)
        done += len(part)
    return tf.Variable(stored, trainable=False, name=name)


def _are_shards(value: Object) -> bool:
    is_sequence = isinstance(value, (list, tuple)) and len(value) > 0
    return is_sequence and all(len(getattr(each, "shape", ())) == 2 for each in value)


def _matrix(shard: Object, where: str) -> Object:
    matrix = shard if hasattr(shard, "dtype") else np.asarray(shard)
    if len(matrix.shape) != 2 or not tf.as_dtype(matrix.dtype).is_floating:
        raise errors.WrongType(
            f"{where}: `parameters` must be a matrix [vocabulary, dim] of floating-point numbers, "
            f"got {tuple(matrix.shape)} of {tf.as_dtype(matrix.dtype).name}."
        )
    return matrix


def _parts(matrices: Sequence[Object], rows_at_once: int) -> Iterator[Array]:
    """Yields a few rows at a time: a float32 copy of the whole table may not fit in memory."""
    for matrix in matrices:
        for start in range(0, int(matrix.shape[0]), rows_at_once):
            yield np.asarray(matrix[start : start + rows_at_once], np.float32)
