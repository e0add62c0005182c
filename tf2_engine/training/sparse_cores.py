"""The tables of a trainer as SparseCores have them: on such a TPU, and in its arithmetic."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf2_engine import errors, log
from tf2_engine.backends import HostDriver, SparseCoreDriver
from tf2_engine.backends.interface import Driver
from tf2_engine.preprocessing import Preprocessing
from tf2_engine.preprocessing.sparse_core import SparseCorePreprocessing
from tf2_engine.specs import EngineSpec, FeatureSpec, TableSpec
from tf2_engine.types import Dataset, Nest, Strategy

ARITHMETICS = ("tpu", "sparsecore")
"""Those of `HostDriver`."""


def make_driver(strategy: Strategy) -> Driver:
    """Returns a driver for a trainer in the scope of a strategy.

    Raises InvalidSpec for a TPU of the first generation.
    """
    if not isinstance(strategy, tf.distribute.TPUStrategy):
        return HostDriver(arithmetic="sparsecore")
    if not SparseCoreDriver.claims(strategy):
        raise errors.InvalidSpec(
            "arithmetic='sparsecore': the TPU has no SparseCores, but embedding hardware of the "
            "first generation. Leave `arithmetic` out, or use a TPU v5p, v6e or TPU7x."
        )
    return SparseCoreDriver()


def engine_spec(spec: EngineSpec, samples: int | None) -> EngineSpec:
    """Returns tables and features as SparseCores have them.

    Args:
        samples: of each core of a TPU, where a sequence is a row of ids for each position; None
            is a host, which has sequences.
    """
    tables, features = tuple(map(_accumulating, spec.tables)), spec.features
    if samples is not None:
        features = _without_sequences(features, samples)
    return dataclasses.replace(spec, tables=tables, features=features)


def preprocessing(general: Preprocessing, spec: EngineSpec) -> SparseCorePreprocessing:
    """Returns a preprocessing that makes the ids of a core of a TPU.

    Args:
        spec: with sequences.
    """
    lengths = {
        key: spec.features[position].max_sequence_length
        for key, position in _positions(spec).items()
    }
    sequences = {key: length for key, length in lengths.items() if length}
    return SparseCorePreprocessing(general.columns, sequences)


def split_first(
    dataset: Dataset, samples: int, prepare: Callable[..., Nest]
) -> Callable[[tf.distribute.InputContext], Dataset]:
    """Returns a function that makes the dataset of a host, whose batches are those of a core.

    A strategy that splits batches takes the first dimension of all tensors for samples, which that
    of a sequence for SparseCores is not; so batches are split before their ids are made.

    Args:
        dataset: of global batches.
        samples: of a core.
        prepare: makes the ids of a batch.
    """

    def of_host(context: tf.distribute.InputContext) -> Dataset:
        hosts = context.num_input_pipelines
        on_host = samples * (context.num_replicas_in_sync // hosts)
        batches = dataset.rebatch(on_host, drop_remainder=True)
        of_this_one = batches.shard(hosts, context.input_pipeline_id)
        return of_this_one.rebatch(samples, drop_remainder=True).map(prepare)

    return of_host


def _positions(spec: EngineSpec) -> dict[str, int]:
    if spec.structure is not None:
        return dict(spec.structure)
    return {feature.name: position for position, feature in enumerate(spec.features)}


def _accumulating(table: TableSpec) -> TableSpec:
    optimizer = table.optimizer
    if optimizer is None or optimizer.use_gradient_accumulation:
        return table
    log.warning(
        "Table %r: use_gradient_accumulation=False is ignored, as SparseCores ignore it: a row is "
        "updated once in a step, with the sum of its gradients.",
        table.name,
    )
    return dataclasses.replace(
        table, optimizer=dataclasses.replace(optimizer, use_gradient_accumulation=True)
    )


def _without_sequences(features: Sequence[FeatureSpec], samples: int) -> tuple[FeatureSpec, ...]:
    return tuple(
        dataclasses.replace(
            feature, max_sequence_length=0, output_shape=(samples, feature.max_sequence_length)
        )
        if feature.max_sequence_length
        else feature
        for feature in features
    )
