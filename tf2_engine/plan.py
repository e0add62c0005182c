"""The plan of an engine: a spec resolved for a number of hosts and cores. Pure.

A plan fixes all that the device configuration says and that drivers compute from: the order of
tables and features, which learning rates are dynamic and under which tag, shards and shapes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from tf2_engine import errors, sharding
from tf2_engine.optimizers import Optimizer
from tf2_engine.placement import Servers, TablePlacement, TableSize
from tf2_engine.quantization import Quantization
from tf2_engine.specs import EngineSpec, FeatureSpec
from tf2_engine.types import Initializer, Nest, Tensor, TensorLike

Shape = tuple[int | None, ...]


@dataclasses.dataclass(frozen=True)
class TablePlan:
    """One table as the engine holds it: ids are below `vocabulary_size`.

    It has as many rows, but at least one per host. `table_id` is its position among the tables, and
    `rate_tag` that among the dynamic rates; None when the rate is constant. `placement` says which
    parameter server holds which rows; None where the hosts of the plan hold them.
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
        """Returns rows of the table, [num_ids, dim] float32, as a lookup combines them.

        They are quantized first, and then read as the optimizer defines.
        """
        if self.quantization is not None:
            rows = self.quantization(rows)
        return self.optimizer.activation(rows)


@dataclasses.dataclass(frozen=True)
class FeaturePlan:
    """One feature as the engine looks it up.

    The `output_shape` is the per-core shape of the activation without `dim`; its first dimension is
    None when batches may differ in size.
    """

    name: str
    table: TablePlan
    output_shape: Shape
    max_sequence_length: int
    send_name: bool

    @property
    def cells(self) -> int | None:
        """The number of activations per core, or None when the batch size is open."""
        known = [size for size in self.output_shape if size is not None]
        return math.prod(known) if len(known) == len(self.output_shape) else None

    @property
    def cells_per_sample(self) -> int:
        """The number of activations for one step along the first dimension."""
        return math.prod(size for size in self.output_shape[1:] if size is not None)

    @property
    def takes_any_rows(self) -> bool:
        """Whether a ragged batch may have another number of rows than samples.

        An activation whose `output_shape` has several dimensions is filled by as many rows as it
        has cells, or by a divisor of that number, as sequences.
        """
        return len(self.output_shape) > 1 and not self.max_sequence_length

    @property
    def where(self) -> str:
        """How messages name this feature."""
        return f"Feature {self.name!r} (table {self.table.name!r})"


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that a driver needs to know; see `make_plan`."""

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
        """Returns the positions of the features that look up in `table`."""
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
    """Returns the plan of a spec for a number of hosts and cores.

    With `servers` parameter servers hold the tables, instead of hosts.

    The output shapes are those of the activations on a core, without `dim`, in the order of the
    spec; a sequence feature's has its length in it. Without `training` the device is configured for
    inference. Raises InvalidSpec, with the name of the feature, if an output shape contradicts the
    spec.
    """
    for name, number in (("num_hosts", num_hosts), ("num_cores", num_cores)):
        if number < 1:
            raise errors.InvalidSpec(f"`{name}` must be at least 1, got {number}.")
    if num_cores % num_hosts:
        raise errors.InvalidSpec(f"{num_cores} cores cannot be spread over {num_hosts} hosts.")
    placement = servers.place(_sizes(spec, training)).tables if servers else {}
    # Plans have the settings of their specs under the same names, and some of their own.
    tables = {}
    dynamic_rates: list[Callable[[], TensorLike]] = []
    for position, table in enumerate(spec.tables):
        assert table.name is not None and table.optimizer is not None
        rate = table.optimizer.learning_rate
        if callable(rate) and rate not in dynamic_rates:  # by first use, so that tags never vary
            dynamic_rates.append(rate)
        tables[table.name] = TablePlan(
            **vars(table),
            table_id=position,
            # The device wants a row on every host; the rows beyond the vocabulary are never hit.
            rows=max(table.vocabulary_size, num_hosts),
            rate_tag=dynamic_rates.index(rate) if callable(rate) else None,
            placement=placement.get(table.name),
        )
    features = tuple(
        FeaturePlan(
            name=feature.name,
            table=tables[feature.table],
            output_shape=_checked_shape(feature, shape),
            # An `output_shape` says how many positions there are.
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
    """Returns [rows, dim] of each host's shard of a table; or of each server's part."""
    if table.placement is not None:
        return tuple((rows, table.dim) for rows in table.placement.part_rows)
    return tuple((rows, table.dim) for rows in sharding.shard_rows(table.rows, num_hosts))


def agree(expected: Shape, actual: Shape) -> bool:
    """Returns whether shapes have one rank, and the same sizes where both are known."""
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
        problem = f"the output shape must be known but for its first dimension, got {shape}."
    elif any(size is not None and size < 1 for size in shape):
        problem = f"every dimension of the output shape must be positive, got {shape}."
    elif declared is not None and not agree(declared, shape):
        problem = f"its `output_shape` is {declared}, but the batch has {shape}."
    if problem:
        raise errors.InvalidSpec(f"Input Feature {feature.name!r}: {problem}")
    return tuple(shape)
