"""The host driver's steps on the fused ops: the features of all cores in one call.

They compute what `batch.occurrences`, `lookup.look_up` and `update.update_table` do, on the same
variables, and round as these do but for powers (FTRL, AdagradMomentum). Sums are in order of
occurrence whatever the number of threads. What `fits` refuses stays with TensorFlow's ops.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf2_engine import batch
from tf2_engine.batch import Occurrences, RawIds, check_layout, checks_samples
from tf2_engine.config_proto import optimizer_proto
from tf2_engine.native import RULES
from tf2_engine.plan import FeaturePlan, Plan, TablePlan
from tf2_engine.tables import PARAMETERS, Table


def fits(table: TablePlan) -> bool:
    """Returns whether the ops know all that a table asks for.

    They do not update rows that are in no batch (Adam with lazy_adam=False), nor compute from rows
    what is combined (FrequencyEstimator with weighted=True, and quantization).
    """
    optimizer = table.optimizer
    return (
        optimizer.proto_field in RULES
        and not optimizer.updates_all_rows
        and optimizer.looks_up_rows
        and table.quantization is None
    )


def occurrences(
    ops: Any, features: Sequence[FeaturePlan], raw: Sequence[RawIds], out_of_range: str
) -> list[Occurrences]:
    """Returns which row goes where, for each of a core's features; see `batch.occurrences`."""
    found: list[Any] = [None] * len(features)
    known: dict[int, int] = {}
    for position, (feature, one) in enumerate(zip(features, raw, strict=True)):
        per_row = check_layout(feature, one)
        if per_row is None:
            found[position] = batch.occurrences(feature, one, out_of_range)
        else:
            known[position] = per_row
    fused = _occurrences(
        ops,
        [features[position] for position in known],
        [raw[position] for position in known],
        list(known.values()),
        out_of_range,
    )
    for position, occurrence in zip(known, fused, strict=True):
        found[position] = occurrence
    return found


def _occurrences(
    ops: Any,
    features: Sequence[FeaturePlan],
    raw: Sequence[RawIds],
    per_row: Sequence[int],
    out_of_range: str,
) -> list[Occurrences]:
    if not features:
        return []
    no_index, no_weight = tf.zeros([0], tf.int64), tf.zeros([0], tf.float32)
    drop = out_of_range == "drop"
    kept = ops.tf2_engine_occurrences(
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
    found = []
    for feature, one, size, ids, cell, gain, num_cells in zip(
        features, raw, per_row, *kept, strict=True
    ):
        has_cell = drop or one.kind != "dense"
        combined = feature.table.combiner != "sum" and one.kind != "dense"
        has_gain = size == 1 and (one.weight is not None or combined)
        found.append(
            Occurrences(
                ids,
                cell if has_cell else None,
                gain if has_gain else None,
                feature.cells or num_cells,
            )
        )
    return found


def look_up(
    ops: Any,
    plan: Plan,
    tables: Mapping[str, Table],
    features: Sequence[FeaturePlan],
    per_core: Sequence[Sequence[Occurrences]],
) -> list[list[Any]]:
    """Returns activations per core and feature: [*output_shape, dim] float32.

    Args:
        features: those to look up.
        per_core: for each core the occurrences of these features.
    """
    used = _used(plan, features)
    position = {table.name: number for number, table in enumerate(used)}
    pieces = [
        (feature, one.compact())
        for core in per_core
        for feature, one in zip(features, core, strict=True)
    ]
    shards = [shard for table in used for shard in tables[table.name].variables[PARAMETERS]]
    with _beside(shards):
        activations = ops.tf2_engine_lookup(
            parameters=[shard.handle for shard in shards],
            ids=[one.ids for _, one in pieces],
            cells=[one.cell for _, one in pieces],
            gains=[one.gain for _, one in pieces],
            num_cells=[tf.cast(one.num_cells, tf.int64) for _, one in pieces],
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


class Sent(NamedTuple):
    """What one feature on one core sends back: a gradient of the shape of its activation."""

    feature: FeaturePlan
    occurrences: Occurrences
    gradient: Any


def update(
    ops: Any,
    plan: Plan,
    tables: Mapping[str, Table],
    per_core: Sequence[Sequence[Sent]],
    rates: Mapping[str, Any],
) -> Any:
    """Applies one step to the tables of all features given; returns the op.

    Args:
        per_core: for each core what the same features send back.
        rates: of each table, scalar float32.
    """
    used = _used(plan, [sent.feature for sent in per_core[0]])
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
    with _beside(variables):
        return ops.tf2_engine_update(
            variables=[variable.handle for variable in variables],
            ids=[one.ids for _, _, one in pieces],
            cells=[one.cell for _, _, one in pieces],
            gains=[one.gain for _, _, one in pieces],
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


def _used(plan: Plan, features: Sequence[FeaturePlan]) -> list[TablePlan]:
    names = {feature.table.name for feature in features}
    return [table for table in plan.tables if table.name in names]


def _beside(variables: Sequence[tf.Variable]) -> Any:
    """Puts ops where the variables are, whatever device a replica is on."""
    device = variables[0].device
    return tf.device(device) if device else contextlib.nullcontext()
