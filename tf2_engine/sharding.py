"""Maps rows to hosts and back, with the partition strategies "div" and "mod".

Source: the comment of `TPUEmbeddingConfiguration.sharding_strategy` in
tpu_embedding_configuration.proto (example: 13 ids on 5 hosts), and the documentation of
`partition_strategy` in `tf.nn.embedding_lookup`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from tf2_engine.types import Array, Tensor

STRATEGIES = ("div", "mod")

PARAMETERS = "parameters"
"""The key of a table's parameters among its variables. The other keys are the names of slots."""

Integers = TypeVar("Integers", int, Array, Tensor)
"""Ids, rows or shards: an int, or an integer array or tensor."""


def shard_rows(rows: int, num_shards: int) -> tuple[int, ...]:
    quotient, extra = divmod(rows, num_shards)
    return tuple(quotient + (shard < extra) for shard in range(num_shards))


def shard_of(
    ids: Integers,
    rows: int,
    num_shards: int,
    strategy: str,
    maximum: Callable[[Integers, Integers], Integers] = np.maximum,
) -> Integers:
    """Finds the shard of each id. `maximum` is the element-wise maximum for the type of `ids`."""
    if strategy == "mod":
        return ids % num_shards
    quotient, extra = divmod(rows, num_shards)
    if quotient == 0:
        return ids
    # The first shards may have one more row. For an id in one of them, the first term is right and
    # the second is too small. For any other id, the second term is right and the first too small.
    return maximum(ids // (quotient + 1), (ids - extra) // quotient)


def local_row(ids: Integers, rows: int, num_shards: int, strategy: str) -> Integers:
    if strategy == "mod":
        return ids // num_shards
    shard = shard_of(ids, rows, num_shards, strategy)
    return ids - first_row(shard, rows, num_shards)


def first_row(shard: Integers, rows: int, num_shards: int) -> Integers:
    quotient, extra = divmod(rows, num_shards)
    over = shard > extra
    return shard * (quotient + 1) - over * (shard - extra)


def global_id(
    shard: Integers, row: Integers, rows: int, num_shards: int, strategy: str
) -> Integers:
    if strategy == "mod":
        return shard + row * num_shards
    return first_row(shard, rows, num_shards) + row
