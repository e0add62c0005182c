"""Examines the rows that batches of the program's own data look up, without running a model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import tensorflow.compat.v1 as tf

from estimator_bridge.audit.of_sparse_cores import Sampled
from estimator_bridge.runtime.estimator.tpu_estimator import TPUEstimator
from estimator_bridge.runtime.input.feature_splitting import CoreInput, split_features
from estimator_bridge.settings.legacy_spec import LegacySpec
from estimator_bridge.translation.translate import output_shapes, translate
from tf2_engine import batch
from tf2_engine.plan import FeaturePlan, make_plan
from tf2_engine.sparsecore_layout import TableLayout
from tf2_engine.sparsecore_limits import Lookup, Need, needs
from tf2_engine.types import Object, Tensor


def sample(
    estimator: TPUEstimator,
    input_fn: Object,
    legacy: LegacySpec,
    layouts: Mapping[str, TableLayout],
    batches: int,
) -> Sampled:
    rows = {table.name: table.vocabulary_size for table in legacy.tables}
    need_of: dict[str, Need] = {}
    outside: dict[str, int] = {}
    num_cores = next(iter(layouts.values())).sparse_cores.cores
    count = 0
    for per_core in lookups_of_batches(estimator, input_fn, legacy, num_cores, batches):
        count += 1
        for lookups in per_core:
            known = []
            for lookup in lookups:
                inside = (lookup.ids >= 0) & (lookup.ids < rows[lookup.table])
                if not np.all(inside):
                    lost = int(np.count_nonzero(~inside))
                    outside[lookup.feature] = outside.get(lookup.feature, 0) + lost
                known.append(lookup._replace(ids=lookup.ids[inside], cells=lookup.cells[inside]))
            for stack, need in needs(layouts, known).items():
                need_of[stack] = need_of.get(stack, Need()) | need
    return Sampled(count, dict(sorted(need_of.items())), outside)


def lookups_of_batches(
    estimator: TPUEstimator, input_fn: Object, legacy: LegacySpec, num_cores: int, batches: int
) -> Iterator[list[list[Lookup]]]:
    with tf.Graph().as_default():
        tf.train.get_or_create_global_step()
        parts, hooks = estimator._read_cores(input_fn, num_cores)
        inputs = [split_features(features, legacy) for features, _ in parts]
        spec = translate(legacy, training=False, step=lambda: 0)
        size = _samples(inputs)
        plan = make_plan(
            spec,
            output_shapes(legacy, None if size is None else size * num_cores, num_cores),
            num_cores=num_cores,
            training=False,
        )
        fetches = [
            {feature.name: _tensors(feature, part) for feature in plan.features} for part in inputs
        ]
        tables = {feature.name: feature.table.name for feature in plan.features}
        with tf.train.MonitoredSession(hooks=hooks) as session:
            for _ in range(batches):
                try:
                    values = session.run(fetches)
                except tf.errors.OutOfRangeError:
                    return
                yield [
                    [
                        Lookup(name, tables[name], int(num_cells), cells, ids)
                        for name, (num_cells, cells, ids) in of_core.items()
                    ]
                    for of_core in values
                ]


def _tensors(feature: FeaturePlan, part: CoreInput) -> tuple[Tensor, Tensor, Tensor]:
    raw = batch.read_ids(feature, part.ids[feature.name], part.weights[feature.name])
    ids, cell, _, num_cells = batch.occurrences(feature, raw, out_of_range="keep").explicit()
    return num_cells, cell, ids


def _samples(inputs: Iterable[CoreInput]) -> int | None:
    sizes = {ids.shape.as_list()[0] for part in inputs for ids in part.ids.values()}
    size = sizes.pop() if len(sizes) == 1 else None
    return None if size is None else int(size)
