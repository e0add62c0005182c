"""Descriptions of tables, features and engine options, which are checked and then immutable."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence

import numpy as np
import tensorflow as tf

from tf2_engine import arguments, errors, initializers, sharding, tf_compat
from tf2_engine.optimizers import OPTIMIZERS, SGD, Optimizer
from tf2_engine.optimizers.optimizer import optimization_barrier
from tf2_engine.types import Initializer, Nest, Object, Tensor


@dataclasses.dataclass(frozen=True)
class Quantization:
    """Rounds looked-up embeddings to the nearest of `num_buckets` evenly spaced values.

        q = (upper - lower) / (num_buckets - 1)
        x <- floor((clip(x, lower, upper) - lower) / q + 0.5) * q + lower

    Each row is rounded before the combiner is applied. Tables are not rounded. The gradient is
    computed as if there were no rounding.

    Attributes:
        num_buckets: at least 2.

    Reference: SimulatedQuantization in optimization_parameters.proto.
    """

    num_buckets: int
    lower: float
    upper: float

    def __post_init__(self) -> None:
        number = self.num_buckets
        if isinstance(number, bool) or not isinstance(number, int) or number < 2:
            raise errors.InvalidSpec(
                f"Quantization: `num_buckets` must be an int of at least 2, got {number!r}."
            )
        # The device stores both limits as float32, which may make them equal.
        if not math.isfinite(self.upper - self.lower) or not np.float32(self.lower) < np.float32(
            self.upper
        ):
            raise errors.InvalidSpec(
                f"Quantization: `lower` must be below `upper`, and both finite, got {self.lower!r} "
                f"and {self.upper!r}."
            )

    def __call__(self, rows: Tensor) -> Tensor:
        lower, upper = np.float32(self.lower), np.float32(self.upper)
        quantum = optimization_barrier((upper - lower) / np.float32(self.num_buckets - 1))
        low = optimization_barrier(lower)
        clipped = tf.minimum(tf.maximum(rows, low), optimization_barrier(upper))
        return tf.floor((clipped - low) / quantum + np.float32(0.5)) * quantum + low


COMBINERS = ("sum", "mean", "sqrtn")
OUT_OF_RANGE = ("error", "drop")


@dataclasses.dataclass(frozen=True)
class TableSpec:
    """One embedding table, with `vocabulary_size` rows and `dim` columns.

    Attributes:
        name: a unique name. None becomes `table_<position>`.
        combiner: how the rows of one sample are combined: "sum"; "mean", which is the sum times
            1 / (sum of weights); or "sqrtn", the sum times 1 / sqrt(sum of squared weights).
        optimizer: how rows are updated; None means the optimizer of the engine.
        initializer: called as `initializer(shape, dtype=tf.float32)` for the rows of each host; see
            `initializers.ByShard` for `shard_info`. The default is the initial value that the
            optimizer needs, or else a truncated normal with standard deviation 1 / sqrt(dim).
        hot_id_replication: asks a TPU to keep frequent rows on every core; does not change results.
        quantization: how lookups round the rows; None means no rounding.
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
        where = f"Table {self.name!r}: "
        _check_int(where, "vocabulary_size", self.vocabulary_size, 1)
        _check_int(where, "dim", self.dim, 1)
        check_choice(where, "combiner", self.combiner, COMBINERS)
        if self.initializer is not None:
            initializers.check(self.name, self.initializer)
        if not isinstance(self.quantization, Quantization | None):
            raise errors.InvalidSpec(
                f"{where}`quantization` must be a Quantization, got {self.quantization!r}."
            )
        if not isinstance(self.optimizer, Optimizer | None):
            raise errors.InvalidSpec(
                f"{where}{self.optimizer!r} is not an optimizer of this engine; known: "
                f"{', '.join(OPTIMIZERS)}."
            )
        _check_types(self)
        if self.optimizer is not None:
            self._adapt_to(self.optimizer)

    def _adapt_to(self, optimizer: Optimizer) -> None:
        if optimizer.only_dim not in (None, self.dim):
            raise errors.InvalidSpec(
                f"Table {self.name!r}: with `{type(optimizer).__name__}` the `dim` must be "
                f"{optimizer.only_dim}, got {self.dim}."
            )
        value = optimizer.row_initial_value
        if self.initializer is None and value is not None:
            object.__setattr__(self, "initializer", tf.compat.v1.constant_initializer(value))


@dataclasses.dataclass(frozen=True)
class FeatureSpec:
    """One feature, whose ids are looked up in one table.

    Attributes:
        name: a unique name for messages.
        max_sequence_length: 0, or the length T of a sequence. The ids of a sequence are not
            combined: the activation is [batch, T, dim]. Longer sequences are cut, and shorter ones
            are padded with zeros.
        output_shape: the shape of the activation per core without `dim`; by default the shape of
            the first batch. Only the first dimension may be None.
        send_name: whether the name is sent to the device, which only displays it. (Stock's legacy
            classes send no name.)
    """

    name: str
    table: str
    max_sequence_length: int = 0
    output_shape: tuple[int | None, ...] | None = None
    send_name: bool = True

    def __post_init__(self) -> None:
        _check_int(f"Feature {self.name!r}: ", "max_sequence_length", self.max_sequence_length, 0)
        if isinstance(self.output_shape, list):
            object.__setattr__(self, "output_shape", tuple(self.output_shape))
        _check_types(self)

    @property
    def where(self) -> str:
        return f"Feature {self.name!r} (table {self.table!r})"


@dataclasses.dataclass(frozen=True)
class EngineSpec:
    """The settings of an engine: its tables, features and options.

    Attributes:
        tables, features: in the order of their numbers on the device.
        structure: the structure of batches, activations and gradients: a nest whose leaves are
            positions in `features`. The default is a dict keyed by feature name.
        pipeline_execution_with_tensor_core: whether a batch is looked up before the previous step's
            update (see this field in tpu_embedding_configuration.proto).
        partition_strategy: how rows are assigned to hosts: "div" or "mod".
        profile_data_directory: where lookup statistics are written, or None.
        out_of_range_ids: "error", or "drop" to ignore ids outside the table.

    Raises:
        InvalidSpec: there is no feature; names are not unique; a feature's table is missing; a
            table has no feature or no optimizer; or an option has a value that is not listed above.
    """

    tables: tuple[TableSpec, ...]
    features: tuple[FeatureSpec, ...]
    structure: Nest = None
    pipeline_execution_with_tensor_core: bool = False
    partition_strategy: str = "div"
    profile_data_directory: str | None = None
    out_of_range_ids: str = "error"

    def __post_init__(self) -> None:
        _check_types(self)
        for name, kind in (("tables", TableSpec), ("features", FeatureSpec)):
            for each in getattr(self, name):
                if not isinstance(each, kind):
                    raise errors.WrongSetting(
                        f"`EngineSpec`: `{name}` must be {kind.__name__}s, got {each!r}."
                    )
        named = (
            dataclasses.replace(table, name=table.name or f"table_{position}")
            for position, table in enumerate(self.tables)
        )
        object.__setattr__(self, "tables", tuple(named))
        object.__setattr__(self, "features", tuple(self.features))
        if self.structure is None:
            by_name = {feature.name: i for i, feature in enumerate(self.features)}
            object.__setattr__(self, "structure", by_name)
        if not self.features:
            raise errors.InvalidSpec("There is no feature; give at least one.")
        _refuse_repeated("table", [table.name for table in self.tables])
        _refuse_repeated("feature", [feature.name for feature in self.features])
        self._check_tables()
        check_choice("", "partition_strategy", self.partition_strategy, sharding.STRATEGIES)
        check_choice("", "out_of_range_ids", self.out_of_range_ids, OUT_OF_RANGE)

    def _check_tables(self) -> None:
        names = [table.name for table in self.tables]
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
                    f"Table {table.name!r} has no optimizer. Pass one for this table or for the "
                    "engine."
                )


NO_UPDATES = SGD(learning_rate=1.0)
"""The optimizer that tables get if they are only looked up, as in stock's inference mode."""


def table_configs(feature_config: Nest) -> list[Object]:
    configs = _feature_configs(feature_config)
    return list({id(config.table): config.table for config in configs}.values())


def has_optimizers(feature_config: Nest, optimizer: Object) -> bool:
    configs = [config for config in tf.nest.flatten(feature_config) if hasattr(config, "table")]
    return optimizer is not None or all(config.table.optimizer is not None for config in configs)


def from_feature_config(
    feature_config: Nest, optimizer: Object = None, **options: Object
) -> EngineSpec:
    """Creates the spec for a nest of `tf.tpu.experimental.embedding.FeatureConfig`.

    Tables are in the order of first use. Two equal TableConfigs are two tables, unless they are the
    same object. `optimizer` is for tables that set none; `options` are further fields of
    `EngineSpec`.
    """
    configs = _feature_configs(feature_config)
    tables = {
        id(config): _read_table(config, position, optimizer)
        for position, config in enumerate(table_configs(feature_config))
    }
    features = tuple(
        _read_feature(config, name, tables[id(config.table)])
        for config, name in zip(configs, _feature_names(feature_config), strict=True)
    )
    structure = tf.nest.pack_sequence_as(feature_config, list(range(len(configs))))
    return EngineSpec(tuple(tables.values()), features, structure, **options)


def read_optimizer(optimizer: Object) -> Optimizer | None:
    if optimizer is None or isinstance(optimizer, Optimizer):
        return optimizer
    counterpart = OPTIMIZERS.get(type(optimizer).__name__)
    if counterpart is None or not hasattr(optimizer, "learning_rate"):
        raise errors.WrongType(
            f"{optimizer!r} is an unsupported optimizer class; known: {', '.join(OPTIMIZERS)}."
        )
    settings = {
        field.name: getattr(optimizer, field.name)
        for field in dataclasses.fields(counterpart)
        if hasattr(optimizer, field.name)
    }
    # The only setting with a different name in stock is a pair (lower, upper).
    clip = getattr(optimizer, "clipvalue", None)
    if clip is not None:
        settings["clip_gradient_min"], settings["clip_gradient_max"] = clip
    return counterpart(**settings)


def _feature_configs(feature_config: Nest) -> list[Object]:
    configs: list[Object] = tf.nest.flatten(feature_config)
    for config in configs:
        if not hasattr(config, "table") or not hasattr(config, "max_sequence_length"):
            raise errors.WrongType(
                f"`feature_config` holds {config!r}, which is not a FeatureConfig."
            )
    return configs


def _read_table(config: Object, position: int, optimizer: Object) -> TableSpec:
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


def _refuse_sparse_core(table: str, config: Object) -> None:
    for setting, neutral, way_out in (
        ("layout", None, "Leave it out: rows are placed by `partition_strategy`."),
        ("dtype", tf.float32, "Tables are float32 here."),
    ):
        value = getattr(config, setting, neutral)
        if value != neutral:
            raise errors.InvalidSpec(
                f"Table {table!r}: `{setting}`={value!r} is for SparseCores only. {way_out}"
            )


def _read_quantization(table: str, config: Object) -> Quantization | None:
    if config is None:
        return None
    try:
        return Quantization(config.num_buckets, config.lower, config.upper)
    except errors.InvalidSpec as error:
        raise errors.InvalidSpec(f"Table {table!r}: {error}") from error


def _feature_names(feature_config: Nest) -> list[str]:
    paths = tf_compat.flatten_with_paths(feature_config)
    used = {config.name for _, config in paths if config.name}
    names = []
    for position, (path, config) in enumerate(paths):
        place = "/".join(map(str, path))
        is_free = bool(place) and place not in used
        names.append(config.name or (place if is_free else f"feature_{position}"))
        used.add(names[-1])
    return names


def _read_feature(config: Object, name: str, table: TableSpec) -> FeatureSpec:
    assert table.name is not None
    shape = tf.TensorShape(config.output_shape)
    return FeatureSpec(
        name=name,
        table=table.name,
        max_sequence_length=config.max_sequence_length,
        output_shape=None if shape.rank is None else tuple(shape.as_list()),
        send_name=bool(config.name),
    )


def check_choice(where: str, setting: str, value: Object, choices: Collection[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise errors.InvalidSpec(
            f"{where}`{setting}` must be one of {', '.join(choices)}, got {value!r}."
        )


def _check_types(spec: Object) -> None:
    annotations = {each.name: each.type for each in dataclasses.fields(spec)}
    arguments.check(type(spec).__name__, vars(spec), annotations)


def _check_int(where: str, setting: str, value: Object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        expected = "a positive int" if least else "an int of at least 0"
        raise errors.InvalidSpec(f"{where}`{setting}` must be {expected}, got {value!r}.")


def _refuse_repeated(noun: str, names: Sequence[str | None]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise errors.InvalidSpec(
                f"Multiple {noun}s with name {name} found, {names.count(name)} of them. Give each "
                "a name of its own."
            )
