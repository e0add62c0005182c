"""The tables of a trainer as SparseCores have them: on such a TPU, and in its arithmetic."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import tensorflow as tf

from tf2_engine import errors, log
from tf2_engine.backends import HostDriver, SparseCoreDriver
from tf2_engine.backends.interface import Driver
from tf2_engine.preprocessing import Preprocessing
from tf2_engine.preprocessing.module import Prepared
from tf2_engine.specs import EngineSpec, FeatureSpec, TableSpec
from tf2_engine.types import Ids, SparseTensor, Strategy

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
        samples: of each core of a TPU, where each position of a sequence is a sample; None is a
            host, which has sequences.
    """
    tables, features = tuple(map(_accumulating, spec.tables)), spec.features
    if samples is not None:
        features = _without_sequences(features, samples)
    return dataclasses.replace(spec, tables=tables, features=features)


class SparseCoreIds(Preprocessing):
    """Makes ids as the `sparsecore` driver takes them: sorted, and by the positions of sequences.

    Those of a sequence are [batch, T, ids of a position]; what is longer is cut.

    Args:
        general: makes ids of the same features, of a sequence [batch, positions] or
            [batch, positions, ids of a position].
        spec: of a trainer, with sequences.
    """

    def __init__(self, general: Preprocessing, spec: EngineSpec) -> None:
        super().__init__(general.columns)
        self._lengths = tuple(
            (key, spec.features[position].max_sequence_length)
            for key, position in _positions(spec).items()
        )

    def __call__(self, features: Mapping[str, Ids]) -> Prepared:
        """Returns the ids of a batch; raises as `Preprocessing`."""
        prepared, lengths = super().__call__(features), dict(self._lengths)
        return prepared._replace(
            ids={key: _sorted(ids, lengths[key]) for key, ids in prepared.ids.items()},
            weights=prepared.weights
            and {
                key: None if weight is None else _sorted(weight, lengths[key])
                for key, weight in prepared.weights.items()
            },
        )


def _sorted(values: SparseTensor, length: int) -> SparseTensor:
    """Returns ids or weights in the order of samples; those of a sequence of so many positions."""
    if not length:
        return tf.sparse.reorder(values)
    values = tf.sparse.retain(values, values.indices[:, 1] < length)
    indices, shape = values.indices, values.dense_shape
    if indices.shape[1] == 2:
        indices = tf.pad(indices, [[0, 0], [0, 1]])
        shape = tf.pad(shape, [[0, 1]], constant_values=1)
    shape = tf.stack([shape[0], length, shape[2]])
    return tf.sparse.reorder(tf.SparseTensor(indices, values.values, shape))


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
