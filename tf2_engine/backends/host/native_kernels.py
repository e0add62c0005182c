"""The kernel set for native ops, which handle the features of all cores in one call.

The results equal those of TensorFlow's ops, except for the rounding of powers (FTRL,
AdagradMomentum). Terms are always added in the order of the batch, so the number of threads does
not change a sum.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import tensorflow as tf

from tf2_engine import batch
from tf2_engine.backends.host import kernels
from tf2_engine.backends.host.kernels import (
    KernelSet,
    OfFeature,
    StepOccurrences,
    TensorFlowKernels,
    per_core_as,
)
from tf2_engine.backends.interface import Activations, Gradients, Rates
from tf2_engine.batch import Batch, FeatureBatch, FlatBatch, KernelColumns, Occurrences
from tf2_engine.config_proto import optimizer_proto
from tf2_engine.native import RULES
from tf2_engine.plan import FeaturePlan, Plan, TablePlan
from tf2_engine.tables import PARAMETERS, Table
from tf2_engine.types import Object, Op, Tensor, Variable

_MOST_AXES = 8
"""How many axes an activation may have if its batch is on a GPU; see native/gpu/args.h."""


def supports(table: TablePlan) -> bool:
    """Whether the native ops can look up and update a table.

    They cannot update rows outside the batch (Adam with lazy_adam=False), nor look up values that
    are computed from rows (FrequencyEstimator with weighted=True, quantization).
    """
    return looks_up_rows(table) and has_native_rule(table)


def looks_up_rows(table: TablePlan) -> bool:
    return table.optimizer.looks_up_rows and table.quantization is None


def has_native_rule(table: TablePlan) -> bool:
    optimizer = table.optimizer
    return optimizer.proto_field in RULES and not optimizer.updates_all_rows


class NativeKernels(KernelSet):
    """Implements a step with native ops, for tables that they support."""

    name = "native ops"
    dtypes = frozenset({tf.float32})
    """The types of tables that can be looked up. Only float32 tables can be updated."""

    def __init__(
        self, ops: Object, plan: Plan, tables: Mapping[str, Table], arithmetic: str
    ) -> None:
        self._plan, self._tables = plan, tables
        self._ops, self._arithmetic = ops, arithmetic

    def occurrences_of_step(self, features: Sequence[OfFeature]) -> list[Occurrences]:
        # Lookups and updates check ids while reading them. A separate check would make a lookup a
        # tenth slower.
        return self.occurrences(features, check_ids=False)

    def occurrences(
        self, features: Sequence[OfFeature], check_ids: bool = True
    ) -> list[Occurrences]:
        drop = self._plan.out_of_range_ids == "drop"
        read: list[Occurrences | None] = []
        fused: list[tuple[FeaturePlan, FlatBatch, int]] = []
        for feature, raw in features:
            per_row = batch.check_layout(feature, raw)
            one = None if drop or check_ids else _one_per_cell(feature, raw)
            if one is None and per_row is None:
                # If the layout is only known at run time, TensorFlow's ops are used.
                one = batch.occurrences_in(feature, raw, None, self._plan.out_of_range_ids)
            elif one is None and per_row is not None:
                fused.append((feature, raw, per_row))
            read.append(one)
        rest = iter(self._fused_occurrences(fused, drop, check_ids))
        return [next(rest) if one is None else one for one in read]

    def as_tensors(self, occurrences: Occurrences) -> KernelColumns:
        return occurrences.compact()

    def keeps_splits(self, feature: FeaturePlan) -> bool:
        return True

    def look_up(self, per_core: StepOccurrences) -> Activations:
        flat = list(itertools.chain(*per_core))
        used = kernels.tables_of(self._plan, [one.feature for one in flat])
        shards = [shard for table in used for shard in self._shards(table, PARAMETERS)]
        if not {shard.dtype for shard in shards} <= self.dtypes:
            return self._look_up_with_tensorflow(per_core)
        with _device_of(shards):
            parameters = [shard.handle for shard in shards]
            activations = self._look_up(flat, parameters=parameters, **self._placed(used, flat))
        return per_core_as(per_core, activations)

    def update(self, per_core: StepOccurrences, gradients: Gradients, rates: Rates) -> list[Op]:
        flat = list(itertools.chain(*per_core))
        used = kernels.tables_of(self._plan, [one.feature for one in flat])
        variables = [
            shard
            for table in used
            for name in (PARAMETERS, *table.optimizer.slot_names)
            for shard in self._shards(table, name)
        ]
        with _device_of(variables):
            update = self._update(
                flat,
                variables=[variable.handle for variable in variables],
                **self._placed(used, flat),
                gradients=list(itertools.chain(*gradients)),
                rates=kernels.rates_of(used, rates),
                num_cores=self._plan.num_cores,
                arithmetic=self._arithmetic,
                optimizers=[optimizer_proto(table).SerializeToString() for table in used],
                core_of=[number for number, core in enumerate(per_core) for _ in core],
            )
        return [update]

    def _look_up(self, flat: Sequence[Occurrences], **placed: Object) -> list[Tensor]:
        ids, cells, gains, num_cells = self._columns(flat)
        activations: list[Tensor] = self._ops.tf2_engine_lookup(
            ids=ids,
            cells=cells,
            gains=gains,
            num_cells=num_cells,
            sizes=[list(one.feature.output_shape) for one in flat],
            **placed,
        )
        return activations

    def _update(self, flat: Sequence[Occurrences], **placed: Object) -> Op:
        ids, cells, gains, _ = self._columns(flat)
        return self._ops.tf2_engine_update(ids=ids, cells=cells, gains=gains, **placed)

    def _columns(self, flat: Sequence[Occurrences]) -> list[list[Tensor]]:
        return [list(column) for column in zip(*map(self.as_tensors, flat), strict=True)]

    def _look_up_with_tensorflow(self, per_core: StepOccurrences) -> Activations:
        flat = [Occurrences(one.feature, *one.explicit()) for core in per_core for one in core]
        if self._plan.out_of_range_ids == "error":
            flat = batch.after_range_checks(flat)
        tensorflow = TensorFlowKernels(self._plan, self._tables)
        return tensorflow.look_up(per_core_as(per_core, flat))

    def _fused_occurrences(
        self, batches: Sequence[tuple[FeaturePlan, FlatBatch, int]], drop: bool, check_ids: bool
    ) -> list[Occurrences]:
        if not batches:
            return []
        features, raw, per_row = zip(*batches, strict=True)
        no_index, no_weight = tf.zeros([0], tf.int64), tf.zeros([0], tf.float32)
        columns = self._ops.tf2_engine_occurrences(
            index=[no_index if one.index is None else one.index for one in raw],
            ids=[one.ids for one in raw],
            weights=[no_weight if one.weight is None else one.weight for one in raw],
            num_samples=[tf.cast(one.num_samples, tf.int64) for one in raw],
            check_samples=[batch.checks_samples(feature, one) for feature, one, _ in batches],
            rows=[feature.table.vocabulary_size for feature in features],
            per_row=per_row,
            **_described(features, raw),
            where=[feature.where for feature in features],
            drop=drop,
            check_ids=check_ids,
        )
        occurrences = []
        for feature, one, size, ids, cell, gain, num_cells in zip(
            features, raw, per_row, *columns, strict=True
        ):
            combined = feature.table.combiner != "sum" and one.kind != "dense"
            weighted = one.weight is not None
            gain = gain if size == 1 and (weighted or combined) else None
            num_cells = feature.cells or num_cells
            has_splits = one.kind == "ragged" and size == 1 and not weighted
            cell.set_shape([1, None] if has_splits else [None])  # Splits or cells.
            if has_splits:
                occurrences.append(Occurrences(feature, ids, None, gain, num_cells, splits=cell))
                continue
            cell = cell if drop or one.kind != "dense" else None
            occurrences.append(Occurrences(feature, ids, cell, gain, num_cells))
        return occurrences

    def _placed(
        self,
        used: Sequence[TablePlan],
        flat: Sequence[Occurrences],
    ) -> dict[str, Object]:
        return {
            "num_shards": self._plan.num_hosts,
            "strategy": self._plan.partition_strategy,
            "rows": [table.rows for table in used],
            "dims": [table.dim for table in used],
            **places(used, flat),
        }

    def _shards(self, table: TablePlan, name: str) -> tuple[Variable, ...]:
        return self._tables[table.name].variables[name]


class NativeKernelsOnGpu(NativeKernels):
    """Native ops for tables on a GPU.

    The host reads, checks and packs the ids, unless the ids are known to be on a GPU and
    are looked up in the same step. In that case the GPU reads and checks them.
    """

    name = "native ops, on a GPU"
    dtypes = frozenset({tf.float32, tf.float16, tf.bfloat16})
    _has_read_raw = False

    def on_ids(self, core: int) -> AbstractContextManager[None]:
        return tf.device("CPU:0")

    def occurrences(
        self, features: Sequence[OfFeature], check_ids: bool = True
    ) -> list[Occurrences]:
        with tf.device("CPU:0"):
            return super().occurrences(features, check_ids)

    def as_tensors(self, occurrences: Occurrences) -> KernelColumns:
        with tf.device("CPU:0"):
            return occurrences.compact()

    def reads_raw(self, batch: Batch) -> bool:
        shards = [shard for table in self._plan.tables for shard in self._shards(table, PARAMETERS)]
        reads_raw = {shard.dtype for shard in shards} <= self.dtypes and all(
            _stays_on_gpu(feature, one)
            for part in batch.parts.values()
            for feature, one in zip(self._plan.features, part, strict=True)
        )
        # Without `of_replicas`, cores are enqueued separately, and their ids may be on the host.
        reads_raw = reads_raw and batch.of_replicas
        self._has_read_raw |= reads_raw
        return reads_raw

    def check_batches(self) -> Op:
        # A function might be exported, and a SavedModel must not contain this op.
        if not self._has_read_raw or tf.inside_function():
            return None
        with _device_of(self._shards(self._plan.tables[0], PARAMETERS)):
            return self._ops.tf2_engine_check_batches()

    def _look_up(self, flat: Sequence[Occurrences], **placed: Object) -> list[Tensor]:
        if flat[0].raw is None:
            return super()._look_up(flat, **placed)
        activations: list[Tensor] = self._ops.tf2_engine_raw_lookup(**self._raw(flat), **placed)
        return activations

    def _update(self, flat: Sequence[Occurrences], **placed: Object) -> Op:
        if flat[0].raw is None:
            return super()._update(flat, **placed)
        return self._ops.tf2_engine_raw_update(**self._raw(flat), **placed)

    def _raw(self, flat: Sequence[Occurrences]) -> dict[str, Object]:
        features = [one.feature for one in flat]
        raw = [one.raw for one in flat if one.raw is not None]
        no_index, no_weight = tf.zeros([0], tf.int64), tf.zeros([0], tf.float32)
        with tf.device("CPU:0"):
            # The op reads the size of other batches from their shapes, or does not need it.
            unused = tf.zeros([], tf.int64)
        return {
            "index": [no_index if one.index is None else one.index for one in raw],
            "ids": [one.ids for one in raw],
            "weights": [no_weight if one.weight is None else one.weight for one in raw],
            "num_samples": [
                one.num_samples if _has_open_size(feature, one) else unused
                for feature, one in zip(features, raw, strict=True)
            ],
            "check_samples": [
                one.kind != "sparse" and batch.checks_samples(feature, one)
                for feature, one in zip(features, raw, strict=True)
            ],
            "limits": [feature.table.vocabulary_size for feature in features],
            "per_row": [batch.check_layout(*each) for each in zip(features, raw, strict=True)],
            "drop": self._plan.out_of_range_ids == "drop",
            **_described(features, raw),
        }


def places(tables: Sequence[TablePlan], flat: Sequence[Occurrences]) -> dict[str, Object]:
    position = {table.name: number for number, table in enumerate(tables)}
    return {
        "table_of": [position[one.feature.table.name] for one in flat],
        "where": [one.feature.where for one in flat],
    }


def _described(features: Sequence[FeaturePlan], raw: Sequence[FlatBatch]) -> dict[str, Object]:
    return {
        "kinds": [one.kind for one in raw],
        "combiners": [feature.table.combiner for feature in features],
        "weighted": [one.weight is not None for one in raw],
        "sequence": [feature.max_sequence_length > 0 for feature in features],
        "sizes": [list(feature.output_shape) for feature in features],
    }


def _has_open_size(feature: FeaturePlan, raw: FlatBatch) -> bool:
    return raw.kind == "sparse" and feature.cells is None


def _stays_on_gpu(feature: FeaturePlan, values: FeatureBatch) -> bool:
    tensors: list[Object] = []
    for value in values:
        if isinstance(value, tf.RaggedTensor):
            tensors += [value.values, value.row_splits]
        elif isinstance(value, tf.SparseTensor):
            tensors += [value.values, value.indices]
        elif value is not None:
            tensors.append(value)
    is_open = (
        isinstance(values.ids, tf.RaggedTensor)
        and feature.takes_any_rows
        and values.ids.row_splits.shape[0] is None
    )
    return (
        all(map(is_on_gpu, tensors))
        and not is_open  # The number of activations per row is not known.
        and len(feature.output_shape) <= _MOST_AXES
    )


def is_on_gpu(tensor: Object) -> bool:
    """Whether a tensor is known to be on a GPU.

    In a graph, this is known only for the output of an op that `tf.device` has placed on a GPU.
    While a function is traced, the device of its arguments is unknown.
    """
    if not isinstance(tensor, tf.Tensor):
        return False
    if hasattr(tensor, "backing_device"):  # eager
        return "GPU" in tensor.backing_device
    return tensor.op.type != "Placeholder" and "GPU" in tensor.device.upper()


def _one_per_cell(feature: FeaturePlan, raw: FlatBatch) -> Occurrences | None:
    if raw.kind != "dense" or feature.cells is None or raw.ids.shape.as_list() != [feature.cells]:
        return None
    return Occurrences(feature, raw.ids, None, None, feature.cells)


def _device_of(variables: Sequence[Variable]) -> AbstractContextManager[None]:
    device = variables[0].device
    return tf.device(device) if device else contextlib.nullcontext()
