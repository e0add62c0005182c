"""What the user asks for: tables, features and engine options, frozen and checked.

Built directly, or from the configuration objects of `tf.tpu.experimental.embedding`, which are
read and never written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf2_engine import errors, initializers, sharding, tf_compat
from tf2_engine.optimizers import OPTIMIZERS, SGD, Optimizer
from tf2_engine.quantization import Quantization

COMBINERS = ("sum", "mean", "sqrtn")
OUT_OF_RANGE = ("error", "drop")

Initializer = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class TableSpec:
    """One embedding table.

    Attributes:
        name: unique among the tables; None is filled in as `table_<position>`.
        vocabulary_size: rows.
        dim: columns.
        combiner: how the rows of one sample are reduced: "sum"; "mean", scaled by
            1 / sum of weights; "sqrtn", scaled by 1 / sqrt(sum of squared weights).
        optimizer: how rows are updated; None takes the engine's.
        initializer: called as `initializer(shape, dtype=tf.float32)` for the rows of each host, or
            with `shard_info` if it takes that (see `initializers.ByShard`); None is what the
            optimizer wants rows to start with, or else a truncated normal of standard deviation
            1 / sqrt(dim).
        hot_id_replication: asks a TPU to keep frequent rows on every core. Numerically neutral.
        quantization: how lookups round the rows; None is not at all.

    Raises:
        InvalidSpec: a setting is outside its range; the message names the table.
    """

    name: str | None
    vocabulary_size: int
    dim: int
    combiner: str = "mean"
    optimizer: Optimizer | None = None
    initializer: Initializer | None = None
    hot_id_replication: bool = False
    quantization: Quantization | None = None

    def __post_init__(self) -> None:
        for field in ("vocabulary_size", "dim"):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise errors.InvalidSpec(
                    f"Table {self.name!r}: `{field}` must be a positive int, got {value!r}."
                )
        if self.combiner not in COMBINERS:
            raise errors.InvalidSpec(
                f"Table {self.name!r}: `combiner` must be one of {', '.join(COMBINERS)}, got "
                f"{self.combiner!r}."
            )
        if self.initializer is not None:
            initializers.check(self.name, self.initializer)
        if self.quantization is not None and not isinstance(self.quantization, Quantization):
            raise errors.InvalidSpec(
                f"Table {self.name!r}: `quantization` must be a Quantization, got "
                f"{self.quantization!r}."
            )
        if self.optimizer is not None and not isinstance(self.optimizer, Optimizer):
            raise errors.InvalidSpec(
                f"Table {self.name!r}: {self.optimizer!r} is not an optimizer of this engine; "
                f"known: {', '.join(OPTIMIZERS)}."
            )
        if self.optimizer is not None:
            self._suit(self.optimizer)

    def _suit(self, optimizer: Optimizer) -> None:
        if optimizer.only_dim not in (None, self.dim):
            raise errors.InvalidSpec(
                f"Table {self.name!r}: with `{type(optimizer).__name__}` the `dim` must be "
                f"{optimizer.only_dim}, got {self.dim}."
            )
        start = optimizer.row_initial_value
        if self.initializer is None and start is not None:
            object.__setattr__(self, "initializer", tf.compat.v1.constant_initializer(start))


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """One feature: ids that are looked up in one table.

    Attributes:
        name: for messages; unique, and informational to the device.
        table: name of the table.
        max_sequence_length: 0, or the T of a sequence: its ids are not combined, the activation
            is [batch, T, dim], longer sequences are cut and shorter ones padded with zeros.
        output_shape: per-core shape of the activation without `dim`, or None to take it from
            the first batch. Only the first dimension may be None inside.
        send_name: whether the device gets the name (stock's legacy stack sends none).

    Raises:
        InvalidSpec: the length is no int of at least 0; the message names the feature.
    """

    name: str
    table: str
    max_sequence_length: int = 0
    output_shape: tuple[int | None, ...] | None = None
    send_name: bool = True

    def __post_init__(self) -> None:
        length = self.max_sequence_length
        if isinstance(length, bool) or not isinstance(length, int) or length < 0:
            raise errors.InvalidSpec(
                f"Feature {self.name!r}: `max_sequence_length` must be an int of at least 0, got "
                f"{length!r}."
            )


@dataclasses.dataclass(frozen=True)
class EngineSpec:
    """Everything the engine is told.

    Attributes:
        tables: in device order.
        features: in device order.
        structure: a nest whose leaves are positions in `features`; batches, activations and
            gradients have this structure. None is a dict by feature name.
        pipeline_execution_with_tensor_core: a step's activations do not see the update of the
            step before it (see the field of that name in tpu_embedding_configuration.proto).
        partition_strategy: "div" or "mod": which host holds which row.
        profile_data_directory: where lookup statistics are kept; None keeps none.
        out_of_range_ids: "error", or "drop" to treat an id below 0 or beyond the table as absent.

    Raises:
        InvalidSpec: there is no feature; names are not unique; a feature's table is not there, or a
            table has no feature or no optimizer; or a word is none of those above.
    """

    tables: tuple[TableSpec, ...]
    features: tuple[FeatureSpec, ...]
    structure: Any = None
    pipeline_execution_with_tensor_core: bool = False
    partition_strategy: str = "div"
    profile_data_directory: str | None = None
    out_of_range_ids: str = "error"

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", _named(self.tables))
        if self.structure is None:
            by_name = {feature.name: i for i, feature in enumerate(self.features)}
            object.__setattr__(self, "structure", by_name)
        if not self.features:
            raise errors.InvalidSpec("There is no feature; give at least one.")
        names = [table.name for table in self.tables]
        _refuse_repeated("table", names)
        _refuse_repeated("feature", [feature.name for feature in self.features])
        for feature in self.features:
            if feature.table not in names:
                raise errors.InvalidSpec(
                    f"Feature {feature.name!r} refers to table {feature.table!r}, which is not "
                    f"among the tables {names}."
                )
        for name in sorted(set(names) - {feature.table for feature in self.features}, key=str):
            raise errors.InvalidSpec(
                f"Table {name!r} is not used by any feature. Remove it, or add a feature for it."
            )
        for table in self.tables:
            if table.optimizer is None:
                raise errors.InvalidSpec(
                    f"Table {table.name!r} has no optimizer. Pass one for it or for the engine."
                )
        if self.partition_strategy not in sharding.STRATEGIES:
            raise errors.InvalidSpec(
                f"`partition_strategy` must be one of {', '.join(sharding.STRATEGIES)}, got "
                f"{self.partition_strategy!r}."
            )
        if self.out_of_range_ids not in OUT_OF_RANGE:
            raise errors.InvalidSpec(
                f"`out_of_range_ids` must be one of {', '.join(OUT_OF_RANGE)}, got "
                f"{self.out_of_range_ids!r}."
            )


NO_UPDATES = SGD(learning_rate=1.0)
"""Stands for the optimizer of a table that is only looked up, as in stock's inference mode."""


def table_configs(feature_config: Any) -> list[Any]:
    """Returns the distinct table configs of a nest of FeatureConfigs, in order of first use.

    Raises:
        WrongType: a leaf is no FeatureConfig.
    """
    tables: dict[int, Any] = {}
    for config in _feature_configs(feature_config):
        tables.setdefault(id(config.table), config.table)
    return list(tables.values())


def has_optimizers(feature_config: Any, optimizer: Any) -> bool:
    """Returns whether every table has an optimizer, its own or the given one."""
    configs = [config for config in tf.nest.flatten(feature_config) if hasattr(config, "table")]
    return optimizer is not None or all(config.table.optimizer is not None for config in configs)


def from_feature_config(feature_config: Any, optimizer: Any = None, **options: Any) -> EngineSpec:
    """Reads a nest of `tf.tpu.experimental.embedding.FeatureConfig`.

    Tables come in the order in which the flattened features name them; a table is an object, so
    two equal TableConfigs are two tables. Nothing that is passed in is changed.

    Args:
        feature_config: any nest of FeatureConfigs.
        optimizer: for tables without one: an optimizer of this engine or of
            `tf.tpu.experimental.embedding`.
        **options: further fields of `EngineSpec`.

    Raises:
        InvalidSpec: as the specs do.
        WrongType: a leaf is no FeatureConfig, or an optimizer is of an unknown class.
    """
    configs = _feature_configs(feature_config)
    tables: dict[int, TableSpec] = {}
    for config in configs:
        if id(config.table) not in tables:
            tables[id(config.table)] = _read_table(config.table, len(tables), optimizer)
    features = tuple(
        _read_feature(config, name, tables[id(config.table)])
        for config, name in zip(configs, _feature_names(feature_config), strict=True)
    )
    structure = tf.nest.pack_sequence_as(feature_config, list(range(len(configs))))
    return EngineSpec(tuple(tables.values()), features, structure, **options)


def read_optimizer(optimizer: Any) -> Optimizer | None:
    """Returns the engine's counterpart of an optimizer of `tf.tpu.experimental.embedding`.

    Raises:
        WrongType: the class is unknown here.
    """
    if optimizer is None or isinstance(optimizer, Optimizer):
        return optimizer
    kind = OPTIMIZERS.get(type(optimizer).__name__)
    if kind is None or not hasattr(optimizer, "learning_rate"):
        raise errors.WrongType(
            f"{optimizer!r} is an unsupported optimizer class; known: {', '.join(OPTIMIZERS)}."
        )
    read = {
        field.name: getattr(optimizer, field.name)
        for field in dataclasses.fields(kind)
        if hasattr(optimizer, field.name)
    }
    # The one setting that stock names otherwise: a pair (lower, upper).
    clip = getattr(optimizer, "clipvalue", None)
    if clip is not None:
        read["clip_gradient_min"], read["clip_gradient_max"] = clip
    return kind(**read)


def _feature_configs(feature_config: Any) -> list[Any]:
    """Returns the leaves of a nest of FeatureConfigs."""
    configs: list[Any] = tf.nest.flatten(feature_config)
    for config in configs:
        if not hasattr(config, "table") or not hasattr(config, "max_sequence_length"):
            raise errors.WrongType(f"`feature_config` holds {config!r}, which is no FeatureConfig.")
    return configs


def _read_table(config: Any, position: int, optimizer: Any) -> TableSpec:
    name = config.name or f"table_{position}"
    _refuse_sparse_core(name, config)
    return TableSpec(
        name=name,
        vocabulary_size=config.vocabulary_size,
        dim=config.dim,
        combiner=config.combiner,
        optimizer=read_optimizer(config.optimizer or optimizer),
        initializer=config.initializer,
        quantization=_read_quantization(name, getattr(config, "quantization_config", None)),
    )


def _refuse_sparse_core(table: str, config: Any) -> None:
    """Refuses what newer TableConfigs have for SparseCores alone."""
    for setting, neutral, way_out in (
        ("layout", None, "Leave it out: rows are placed by `partition_strategy`."),
        ("dtype", tf.float32, "Tables are float32 here."),
    ):
        value = getattr(config, setting, neutral)
        if value != neutral:
            raise errors.InvalidSpec(
                f"Table {table!r}: `{setting}`={value!r} is for SparseCores only. {way_out}"
            )


def _read_quantization(table: str, config: Any) -> Quantization | None:
    if config is None:
        return None
    try:
        return Quantization(config.num_buckets, config.lower, config.upper)
    except errors.InvalidSpec as error:
        raise errors.InvalidSpec(f"Table {table!r}: {error}") from error


def _feature_names(feature_config: Any) -> list[str]:
    """Returns how messages call the features: by their names, else by where they are."""
    paths = tf_compat.flatten_with_paths(feature_config)
    given = {config.name for _, config in paths if config.name}
    names = []
    for position, (path, config) in enumerate(paths):
        place = "/".join(str(part) for part in path)
        free = bool(place) and place not in given
        names.append(config.name or (place if free else f"feature_{position}"))
        given.add(names[-1])
    return names


def _read_feature(config: Any, name: str, table: TableSpec) -> FeatureSpec:
    assert table.name is not None
    shape = tf.TensorShape(config.output_shape)
    return FeatureSpec(
        name=name,
        table=table.name,
        max_sequence_length=config.max_sequence_length,
        output_shape=None if shape.rank is None else tuple(shape.as_list()),
        send_name=bool(config.name),
    )


def _named(tables: Sequence[TableSpec]) -> tuple[TableSpec, ...]:
    return tuple(
        dataclasses.replace(table, name=table.name or f"table_{position}")
        for position, table in enumerate(tables)
    )


def _refuse_repeated(what: str, names: Sequence[str | None]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise errors.InvalidSpec(
                f"There are {names.count(name)} {what}s with the name {name!r}; names must be "
                "unique."
            )
