"""The fused kernels: the features of all cores in one call of a native op.

They compute the same as `batch.occurrences`, `lookup.look_up` and `update.update_table`, on the
same variables, and round as these do but for powers (FTRL, AdagradMomentum). Sums are in order of
occurrence whatever the number of threads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import tensorflow as tf

from tf2_engine.backends.host.kernels import FeatureGradient
from tf2_engine.batch import (
    Occurrences,
    OccurrenceTensors,
    RawIds,
    check_layout,
    checks_samples,
    occurrences_in,
)
from tf2_engine.config_proto import optimizer_proto
from tf2_engine.plan import FeaturePlan, Plan, TablePlan
from tf2_engine.tables import PARAMETERS, Table
from tf2_engine.types import Object, Op, Tensor, Variable

RULES = frozenset(
    {
        "adadelta",
        "adagrad",
        "adagrad_momentum",
        "adam",
        "centered_rms_prop",
        "frequency_estimator",
        "ftrl",
        "mdl_adagrad_light",
        "momentum",
        "proximal_adagrad",
        "proximal_yogi",
        "rms_prop",
        "stochastic_gradient_descent",
    }
)
"""Optimizers that `native/rules.h` knows, by their field in the proto; others run on TensorFlow's
ops."""


def supports(table: TablePlan) -> bool:
    """Whether the native ops can do everything that a table needs.

    They do not update rows that are in no batch (Adam with lazy_adam=False), nor look up values
    that are computed from rows (FrequencyEstimator with weighted=True, and quantization).
    """
    optimizer = table.optimizer
    return (
        optimizer.proto_field in RULES
        and not optimizer.updates_all_rows
        and optimizer.looks_up_rows
        and table.quantization is None
    )


class NativeKernels:
    """A step on the native ops, for tables that they support; see `KernelSet`.

    Args:
        ops: the module of the ops, as `native.loading` returns it.
    """

    name = "native ops"

    def __init__(self, ops: Object) -> None:
        self._ops = ops

    def occurrences(
        self, features: Sequence[FeaturePlan], raw: Sequence[RawIds], out_of_range: str
    ) -> list[Occurrences]:
        """Returns the occurrences of each of a core's features.

        A batch whose layout only the run can tell is read by TensorFlow's ops.
        """
        layouts = [check_layout(feature, ids) for feature, ids in zip(features, raw, strict=True)]
        by_position = {
            position: occurrences_in(features[position], raw[position], None, out_of_range)
            for position, per_row in enumerate(layouts)
            if per_row is None
        }
        known = {
            position: per_row for position, per_row in enumerate(layouts) if per_row is not None
        }
        fused = self._fused_occurrences(
            [features[position] for position in known],
            [raw[position] for position in known],
            list(known.values()),
            out_of_range,
        )
        by_position |= zip(known, fused, strict=True)
        return [by_position[position] for position in range(len(features))]

    def as_tensors(self, occurrences: Sequence[Occurrences]) -> list[OccurrenceTensors]:
        """Returns occurrences with empty tensors for cells and gains of None."""
        return [feature.compact() for feature in occurrences]

    def look_up(
        self,
        plan: Plan,
        tables: Mapping[str, Table],
        features: Sequence[FeaturePlan],
        per_core: Sequence[Sequence[Occurrences]],
    ) -> list[list[Tensor]]:
        """Returns activations per core and feature."""
        used = _tables_of(plan, features)
        position = {table.name: number for number, table in enumerate(used)}
        pieces = [
            (feature, occurrences.compact())
            for core in per_core
            for feature, occurrences in zip(features, core, strict=True)
        ]
        shards = [shard for table in used for shard in tables[table.name].variables[PARAMETERS]]
        with _device_of(shards):
            activations = self._ops.tf2_engine_lookup(
                parameters=[shard.handle for shard in shards],
                ids=[piece.ids for _, piece in pieces],
                cells=[piece.cell for _, piece in pieces],
                gains=[piece.gain for _, piece in pieces],
                num_cells=[tf.cast(piece.num_cells, tf.int64) for _, piece in pieces],
                num_shards=plan.num_hosts,
                strategy=plan.partition_strategy,
                rows=[table.rows for table in used],
                dims=[table.dim for table in used],
                table_of=[position[feature.table.name] for feature, _ in pieces],
                sizes=[list(feature.output_shape) for feature, _ in pieces],
                where=[feature.where for feature, _ in pieces],
            )
        count = len(features)
        return [activations[start : start + count] for start in range(0, len(activations), count)]

    def update(
        self,
        plan: Plan,
        tables: Mapping[str, Table],
        per_core: Sequence[Sequence[FeatureGradient]],
        rates: Mapping[str, Tensor],
    ) -> list[Op]:
        """Applies one step to the tables of the features; returns the op."""
        used = _tables_of(plan, [sent.feature for sent in per_core[0]])
        position = {table.name: number for number, table in enumerate(used)}
        pieces = [
            (core, sent, sent.occurrences.compact())
            for core, all_sent in enumerate(per_core)
            for sent in all_sent
        ]
        variables = [
            shard
            for table in used
            for name in (PARAMETERS, *table.optimizer.slot_names)
            for shard in tables[table.name].variables[name]
        ]
        with _device_of(variables):
            update = self._ops.tf2_engine_update(
                variables=[variable.handle for variable in variables],
                ids=[piece.ids for _, _, piece in pieces],
                cells=[piece.cell for _, _, piece in pieces],
                gains=[piece.gain for _, _, piece in pieces],
                gradients=[sent.gradient for _, sent, _ in pieces],
                rates=[rates[table.name] for table in used],
                num_shards=plan.num_hosts,
                num_cores=plan.num_cores,
                strategy=plan.partition_strategy,
                rows=[table.rows for table in used],
                dims=[table.dim for table in used],
                optimizers=[optimizer_proto(table).SerializeToString() for table in used],
                table_of=[position[sent.feature.table.name] for _, sent, _ in pieces],
                core_of=[core for core, _, _ in pieces],
                where=[sent.feature.where for _, sent, _ in pieces],
            )
        return [update]

    def _fused_occurrences(
        self,
        features: Sequence[FeaturePlan],
        raw: Sequence[RawIds],
        per_row: Sequence[int],
        out_of_range: str,
    ) -> list[Occurrences]:
        if not features:
            return []
        no_index, no_weight = tf.zeros([0], tf.int64), tf.zeros([0], tf.float32)
        drop = out_of_range == "drop"
        columns = self._ops.tf2_engine_occurrences(
            index=[no_index if one.index is None else one.index for one in raw],
            ids=[one.ids for one in raw],
            weights=[no_weight if one.weight is None else one.weight for one in raw],
            num_samples=[tf.cast(one.num_samples, tf.int64) for one in raw],
            kinds=[one.kind for one in raw],
            combiners=[feature.table.combiner for feature in features],
            weighted=[one.weight is not None for one in raw],
            sequence=[feature.max_sequence_length > 0 for feature in features],
            check_samples=[
                checks_samples(feature, one) for feature, one in zip(features, raw, strict=True)
            ],
            sizes=[list(feature.output_shape) for feature in features],
            rows=[feature.table.vocabulary_size for feature in features],
            per_row=per_row,
            where=[feature.where for feature in features],
            drop=drop,
        )
        occurrences = []
        for feature, one, size, ids, cell, gain, num_cells in zip(
            features, raw, per_row, *columns, strict=True
        ):
            has_cell = drop or one.kind != "dense"
            combined = feature.table.combiner != "sum" and one.kind != "dense"
            has_gain = size == 1 and (one.weight is not None or combined)
            occurrences.append(
                Occurrences(
                    ids,
                    cell if has_cell else None,
                    gain if has_gain else None,
                    feature.cells or num_cells,
                )
            )
        return occurrences


def _tables_of(plan: Plan, features: Sequence[FeaturePlan]) -> list[TablePlan]:
    """Returns the tables of features, in the order of the plan."""
    names = {feature.table.name for feature in features}
    return [table for table in plan.tables if table.name in names]


def _device_of(variables: Sequence[Variable]) -> AbstractContextManager[None]:
    """Puts ops on the device of the variables, whatever device a replica is on."""
    device = variables[0].device
    return tf.device(device) if device else contextlib.nullcontext()
