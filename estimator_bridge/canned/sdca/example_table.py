"""Hash tables with the numbers that stochastic dual coordinate ascent keeps for every example."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from tf2_engine.types import Op, Tensor

_NAME = "ShardedMutableHashTable"
_WIDTH = 4  # the dual variable, the primal loss, the dual loss, and the weight of the example


class ExampleTable:
    """Four numbers for each example, by the hash of its name; saved in checkpoints.

    Args:
        num_shards: the number of tables; an example is in table hash modulo `num_shards`.
    """

    def __init__(self, num_shards: int) -> None:
        with tf.name_scope(_NAME):
            self._shards = [
                tf.lookup.experimental.DenseHashTable(
                    tf.int64,
                    tf.float32,
                    default_value=[0.0] * _WIDTH,
                    # No hash of SdcaFprint equals one of these.
                    empty_key=[0, 0],
                    deleted_key=[1, 1],
                    name=f"{_NAME}-{number}-of-{num_shards}",
                )
                for number in range(1, num_shards + 1)
            ]

    def size(self) -> Tensor:
        """The number of examples."""
        return tf.add_n([shard.size() for shard in self._shards])

    def sums(self) -> Tensor:
        """Sums each number over all examples, [4] float64."""
        sums: list[Tensor] = []
        for shard in self._shards:
            _, values = shard.export()
            # One after another, because each copies a table in double precision.
            with tf.control_dependencies(sums):
                sums.append(tf.reduce_sum(tf.cast(values, tf.float64), 0))
        return tf.add_n(sums)

    def lookup(self, keys: Tensor) -> Tensor:
        """Looks up the numbers of examples, [batch, 4] float32; zeros for new ones."""
        if len(self._shards) == 1:
            return self._shards[0].lookup(keys)
        places = self._places(keys)
        parts = tf.dynamic_partition(keys, places, len(self._shards))
        rows = tf.dynamic_partition(tf.range(tf.shape(keys)[0]), places, len(self._shards))
        numbers = [shard.lookup(part) for shard, part in zip(self._shards, parts, strict=True)]
        return tf.dynamic_stitch(rows, numbers)

    def insert(self, keys: Tensor, values: Tensor) -> Op:
        if len(self._shards) == 1:
            return self._shards[0].insert(keys, values)
        places = self._places(keys)
        split = (tf.dynamic_partition(each, places, len(self._shards)) for each in (keys, values))
        return tf.group(
            *(shard.insert(*part) for shard, *part in zip(self._shards, *split, strict=True))
        )

    def _places(self, keys: Tensor) -> Tensor:
        return tf.cast(tf.floormod(tf.abs(keys[:, 0]), len(self._shards)), tf.int32)
