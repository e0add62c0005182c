"""The plan of an engine: its spec, completed for a given number of hosts and cores."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from tf2_engine import errors, sharding
from tf2_engine.optimizers import Optimizer
from tf2_engine.placement import Servers, TablePlacement, TableSize
from tf2_engine.specs import EngineSpec, FeatureSpec, Quantization
from tf2_engine.types import Initializer, Nest, Tensor, TensorLike

Shape = tuple[int | None, ...]


@dataclasses.dataclass(frozen=True)
class TablePlan:
    """One table in the engine. `rows` is the vocabulary size or, if larger, the number of hosts.

    `table_id` is the position of the table. `rate_tag` is the position of its learning rate among
    the dynamic rates, or None for a constant rate. `placement` maps rows to parameter servers, if
    there are any.
    """

    name: str
    table_id: int
    vocabulary_size: int
    rows: int
    dim: int
    combiner: str
    optimizer: Optimizer
    initializer: Initializer | None = None
    rate_tag: int | None = None
    hot_id_replication: bool = False
    quantization: Quantization | None = None
    placement: TablePlacement | None = None

    def activation(self, rows: Tensor) -> Tensor:
        if self.quantization is not None:
            rows = self.quantization(rows)
        return self.optimizer.activation(rows)


@dataclasses.dataclass(frozen=True)
class FeaturePlan:
    """One feature in the engine.

    `output_shape` is the shape of the activation per core without `dim`. Its first dimension is
    None if batches may differ in size.
    """

    name: str
    table: TablePlan
    output_shape: Shape
    max_sequence_length: int
    send_name: bool

    @property
    def cells(self) -> int | None:
        """The number of activations per core, or None if batches may differ in size."""
        known = [size for size in self.output_shape if size is not None]
        return math.prod(known) if len(known) == len(self.output_shape) else None

    @property
    def cells_per_sample(self) -> int:
        return math.prod(size for size in self.output_shape[1:] if size is not None)

    @property
    def takes_any_rows(self) -> bool:
        """Whether the number of rows of a ragged batch may differ from the number of samples.

        Each row then has the ids of one activation, or of a sequence of activations.
        """
        return len(self.output_shape) > 1 and not self.max_sequence_length

    @property
    def where(self) -> str:
        return f"Feature {self.name!r} (table {self.table.name!r})"


@dataclasses.dataclass(frozen=True)
class Plan:
    """All settings that a driver needs; see `make_plan`."""

    tables: tuple[TablePlan, ...]
    features: tuple[FeaturePlan, ...]
    structure: Nest
    num_hosts: int
    num_cores: int
    partition_strategy: str
    pipeline_execution_with_tensor_core: bool
    profile_data_directory: str | None
    out_of_range_ids: str
    training: bool
    dynamic_rates: tuple[Callable[[], TensorLike], ...]

    def features_of(self, table: TablePlan) -> tuple[int, ...]:
        return tuple(i for i, feature in enumerate(self.features) if feature.table is table)


def make_plan(
    spec: EngineSpec,
    output_shapes: Sequence[Shape],
    *,
    num_hosts: int = 1,
    num_cores: int = 1,
    training: bool = True,
    servers: Servers | None = None,
) -> Plan:
    """Creates the plan of a spec for a number of hosts and cores.

    Args:
        output_shapes: the activation shapes per core without `dim`, in the order of the spec. The
            shape of a sequence feature includes its length.
        servers: the parameter servers that store the tables; None if hosts store them.
    """
    for name, number in (("num_hosts", num_hosts), ("num_cores", num_cores)):
        if number < 1:
            raise errors.InvalidSpec(f"`{name}` must be at least 1, got {number}.")
    if num_cores % num_hosts:
        raise errors.InvalidSpec(f"{num_cores} cores cannot be spread over {num_hosts} hosts.")
    placement = servers.place(_sizes(spec, training)).tables if servers else {}
    # A plan has all settings of its spec, with the same names, and additional settings.
    tables = {}
    dynamic_rates: list[Callable[[], TensorLike]] = []
    for position, table in enumerate(spec.tables):
        assert table.name is not None and table.optimizer is not None
        rate = table.optimizer.learning_rate
        if (
            callable(rate) and rate not in dynamic_rates
        ):  # in the order of first use, so tags never vary
            dynamic_rates.append(rate)
        tables[table.name] = TablePlan(
            **vars(table),
            table_id=position,
            # The device needs a row on every host. Rows beyond the vocabulary are not looked up.
            rows=max(table.vocabulary_size, num_hosts),
            rate_tag=dynamic_rates.index(rate) if callable(rate) else None,
            placement=placement.get(table.name),
        )
    features = tuple(
        FeaturePlan(
            name=feature.name,
            table=tables[feature.table],
            output_shape=_checked_shape(feature, shape),
            # With an `output_shape`, the shape gives the number of positions.
            max_sequence_length=0 if feature.output_shape else feature.max_sequence_length,
            send_name=feature.send_name,
        )
        for feature, shape in zip(spec.features, output_shapes, strict=True)
    )
    return Plan(
        **vars(spec) | {"tables": tuple(tables.values()), "features": features},
        num_hosts=num_hosts,
        num_cores=num_cores,
        training=training,
        dynamic_rates=tuple(dynamic_rates),
    )


def shard_shapes(table: TablePlan, num_hosts: int) -> tuple[tuple[int, int], ...]:
    if table.placement is not None:
        return tuple((rows, table.dim) for rows in table.placement.part_rows)
    return tuple((rows, table.dim) for rows in sharding.shard_rows(table.rows, num_hosts))


def agree(expected: Shape, actual: Shape) -> bool:
    return len(expected) == len(actual) and all(
        a is None or b is None or a == b for a, b in zip(expected, actual, strict=True)
    )


def _sizes(spec: EngineSpec, training: bool) -> list[TableSize]:
    sizes = []
    for table in spec.tables:
        assert table.name is not None and table.optimizer is not None
        slots = table.optimizer.slot_names if training else ()
        sizes.append(TableSize(table.name, table.vocabulary_size, table.dim, 1 + len(slots)))
    return sizes


def _checked_shape(feature: FeatureSpec, shape: Shape) -> Shape:
    declared = feature.output_shape
    problem = None
    if not shape or None in shape[1:]:
        problem = f"the output shape must be known except for its first dimension, got {shape}."
    elif any(size is not None and size < 1 for size in shape):
        problem = f"every dimension of the output shape must be positive, got {shape}."
    elif declared is not None and not agree(declared, shape):
        problem = f"its `output_shape` is {declared}, but the batch has {shape}."
    if problem:
        raise errors.InvalidSpec(f"Input Feature {feature.name!r}: {problem}")
    return tuple(shape)
