"""Makes random calls that no program would make. Each must succeed or end with an error.

    python -m compat_tests.support.hostile SEED COUNT

makes COUNT calls, and prints how many of each kind succeeded and how many were refused. It finishes
only if the process does not crash, nothing waits forever, and every error is an error of TensorFlow
with a message.
"""

from __future__ import annotations

import collections
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from compat_tests.native import test_native_bad_input as native
from compat_tests.support import software_tpu as soft
from tf2_engine import Adagrad, EngineSpec, FeatureSpec, TableSpec, soft_tpu, tf_compat

ROWS, DIM, BATCH, LENGTH = 7, 2, 3, 2
NUMBERS = np.array(
    [0, 1, 2, 3, 6, 7, -1, 2**31 - 1, 2**31, -(2**31), 2**62, -(2**63), 2**63 - 1], np.int64
)
ENQUEUE = {
    "EnqueueTPUEmbeddingArbitraryTensorBatch": "sample_indices_or_row_splits",
    "EnqueueTPUEmbeddingRaggedTensorBatch": "sample_splits",
    "EnqueueTPUEmbeddingSparseBatch": "sample_indices",
    "EnqueueTPUEmbeddingSparseTensorBatch": "sample_indices",
    "DynamicEnqueueTPUEmbeddingArbitraryTensorBatch": "sample_indices_or_row_splits",
    "DynamicEnqueueTPUEmbeddingRaggedTensorBatch": "sample_splits",
}
"""Maps each enqueue op to the name of its argument for indices."""


class Hostile:
    """Makes random calls.

    Attributes:
        outcomes: counts, for each kind of call, how often it succeeded, was refused, or ended while
            waiting.
    """

    def __init__(self, seed: int) -> None:
        self.outcomes: collections.Counter[str] = collections.Counter()
        self._chance = np.random.default_rng(seed)
        self._devices = {cores: _device(cores) for cores in (1, 2)}
        self._waiting: soft.Waiting | None = None
        self._cores = 1
        # The kinds of calls, and their relative frequencies.
        self._kinds: dict[Callable[[], Any], float] = {
            self._configure: 12,
            self._enqueue: 30,
            self._enqueue_what_fits: 14,
            self._transfer: 8,
            self._outside: 6,
            self._feed: 4,
            self._native: 12,
            self._step: 10,
            self._end: 4,
        }
        self._start()

    def run(self, count: int) -> None:
        """Makes `count` calls, and then ends those that are still waiting."""
        kinds = list(self._kinds)
        share = np.array(list(self._kinds.values())) / sum(self._kinds.values())
        for kind in self._chance.choice(np.array(kinds, object), count, p=share):
            name = kind.__name__.strip("_")
            try:
                kind()
                self.outcomes[f"{name} done"] += 1
            except tf.errors.OpError as error:
                if not error.message:
                    raise AssertionError(f"{name} ended with an error without a message") from error
                self.outcomes[f"{name} refused"] += 1
            self._see_what_waited()
        self._start()

    def _see_what_waited(self) -> None:
        if self._waiting is None or self._waiting.waits:
            return
        self._waiting.end()
        error = self._waiting.error
        assert error is None or isinstance(error, tf.errors.OpError)
        self.outcomes["step refused while it waited" if error else "step done after it waited"] += 1
        self._waiting = None

    def _start(self) -> None:
        """Replaces the TPU of the process by another one, and configures it; waiting ops end."""
        self._cores = int(self._chance.choice(list(self._devices)))
        soft_tpu.start(self._cores)
        if self._waiting is not None:
            self._waiting.end(again=lambda: soft_tpu.start(self._cores))
            self._see_what_waited()
        assert soft_tpu.num_waiting() == 0
        tf.raw_ops.ConfigureTPUEmbedding(config=self._devices[self._cores].config)

    def _end(self) -> None:
        """Shuts down or reconfigures the TPU, even in the middle of a step; waiting ops end."""
        ends = (
            self._start,
            tf.raw_ops.ShutdownDistributedTPU,
            tf.raw_ops.ConfigureDistributedTPU,
            lambda: tf.raw_ops.ConfigureTPUEmbedding(config=self._devices[self._cores].config),
        )
        end = ends[self._chance.integers(len(ends))]
        end()
        if self._waiting is not None:
            self._waiting.end(again=lambda: soft_tpu.start(self._cores))
            self._see_what_waited()
        assert soft_tpu.num_waiting() == 0
        if end is not self._start:
            tf.raw_ops.ConfigureTPUEmbedding(config=self._devices[self._cores].config)

    def _configure(self) -> None:
        """Configures the TPU with damaged bytes. If this succeeds, later calls use the TPU."""
        data = bytearray(self._devices[int(self._chance.integers(1, 3))].config)
        for _ in range(self._chance.integers(0, 5)):
            data[self._chance.integers(len(data))] = self._chance.integers(256)
        cut = len(data) if self._chance.random() < 0.6 else self._chance.integers(len(data))
        tf.raw_ops.ConfigureTPUEmbedding(config=bytes(data[:cut]))
        if _is_large(bytes(data[:cut])):
            # This is allowed, but using the tables would need too much memory and time.
            tf.raw_ops.ConfigureTPUEmbedding(config=self._devices[self._cores].config)

    def _numbers(self, count: int, largest: int) -> Any:
        small = self._chance.integers(0, largest, count)
        wild = self._chance.choice(NUMBERS, count)
        return np.where(self._chance.random(count) < 0.02, wild, small)

    def _index(self, num_ids: int, axes: int) -> Any:
        rank = self._chance.choice(4, p=[0.03, 0.35, 0.59, 0.03])
        columns = axes + 1 if self._chance.random() < 0.9 else int(self._chance.integers(4))
        shape = {0: [], 1: [int(self._chance.integers(0, 6))], 2: [num_ids, columns], 3: [1, 1, 1]}
        largest = BATCH if self._chance.random() < 0.8 else BATCH + 1
        coordinates = self._numbers(int(np.prod(shape[int(rank)])), largest).reshape(
            shape[int(rank)]
        )
        if rank == 1 and self._chance.random() < 0.7:
            inner = np.sort(self._chance.integers(0, num_ids + 1, BATCH - 1))
            return np.array([0, *inner, num_ids])
        sort = rank == 2 and columns and self._chance.random() < 0.9
        return coordinates[np.lexsort(coordinates.T[::-1])] if sort else coordinates

    def _feature(self, axes: int) -> tuple[Any, Any, Any]:
        ids = self._numbers(int(self._chance.integers(0, 6)), ROWS)
        weights = self._chance.normal(size=self._chance.choice([0, len(ids), 2], p=[0.5, 0.4, 0.1]))
        if self._chance.random() < 0.05:
            weights[:1] = self._chance.choice([np.nan, np.inf, 1e38, -1e-38])
        return self._index(len(ids), axes), ids, weights

    def _enqueue(self) -> None:
        """Enqueues random inputs with a random op for a random core."""
        op = str(self._chance.choice(list(ENQUEUE)))
        count = 2 if self._chance.random() < 0.9 else int(self._chance.integers(1, 4))
        index, ids, weights = zip(
            *(self._feature(axes) for axes in range(1, count + 1)), strict=True
        )
        whole = np.int32 if self._chance.random() < 0.5 else np.int64
        arguments: dict[str, Any] = {
            ENQUEUE[op]: [one.astype(whole) for one in index],
            "embedding_indices": [one.astype(np.int64) for one in ids],
            "aggregation_weights": [one.astype(np.float32) for one in weights],
            "mode_override": str(
                self._chance.choice(["train", "inference", "x"], p=[0.7, 0.25, 0.05])
            ),
            "device_ordinal": int(self._chance.choice([0, 1, -1, 9], p=[0.6, 0.3, 0.05, 0.05])),
            "combiners": self._combiners(),
        }
        if "Ragged" in op or "SparseTensor" in op:
            arguments["table_ids"] = [0, 1][: int(self._chance.choice([2, 1], p=[0.9, 0.1]))]
        getattr(tf.raw_ops, op)(**arguments)

    def _combiners(self) -> list[str]:
        names = ["sum", "mean", "sqrtn", "max"]
        count = int(self._chance.choice([2, 0, 1, 3], p=[0.8, 0.1, 0.05, 0.05]))
        return [str(one) for one in self._chance.choice(names, count, p=[0.4, 0.3, 0.27, 0.03])]

    def _enqueue_what_fits(self) -> None:
        """Enqueues a valid batch on one or several cores, so that steps can continue."""
        for core in range(self._cores):
            if core == 0 or self._chance.random() < 0.8:
                self._devices[self._cores].enqueue(core, _fitting(self._chance))

    def _transfer(self) -> None:
        """Loads or retrieves a table, which may not exist."""
        name = str(self._chance.choice(soft_tpu.OPTIMIZERS))
        if self._chance.random() < 0.6:
            name = "Adagrad"
        attributes = {
            "table_name": str(self._chance.choice(["words", "users", "verbs", ""])),
            "table_id": int(self._chance.choice([-1, 0, 7], p=[0.8, 0.1, 0.1])),
            "num_shards": int(self._chance.choice([1, 2, 2**31], p=[0.9, 0.05, 0.05])),
            "shard_id": int(self._chance.choice([0, 1, -1], p=[0.9, 0.05, 0.05])),
        }
        if self._chance.random() < 0.5:
            getattr(tf.raw_ops, f"RetrieveTPUEmbedding{name}Parameters")(**attributes)
            return
        shape = [ROWS, DIM] if self._chance.random() < 0.8 else [int(self._chance.integers(9)), 3]
        values = np.zeros(shape, np.float32)
        tf.raw_ops.LoadTPUEmbeddingAdagradParameters(
            parameters=values, accumulators=values, **attributes
        )

    def _outside(self) -> None:
        """Queries the state or sends gradients outside of a computation, where no call waits."""
        if self._chance.random() < 0.3:
            tf.raw_ops.IsTPUEmbeddingInitialized()
        elif self._chance.random() < 0.3:
            tf.raw_ops.ConfigureDistributedTPU()
        elif self._waiting is None:
            soft_tpu.start(self._cores)
            shape = [int(self._chance.integers(0, 4)), DIM]
            self._devices[self._cores].send([np.ones(shape, np.float32)] * 2)

    def _feed(self) -> None:
        tf.raw_ops.InfeedEnqueueTuple(
            inputs=[tf.zeros([int(self._chance.integers(0, 3))])],
            shapes=[[int(self._chance.integers(0, 3))]],
            device_ordinal=int(self._chance.choice([0, 1, 2, -1])),
        )

    def _native(self) -> None:
        """Calls a fused op of the host driver with nonsensical arguments."""
        chosen = self._chance.integers(3)
        if chosen == 0:
            native.occurrences(**native.arbitrary(self._chance))
        elif chosen == 1:
            ids = self._numbers(3, ROWS)
            native.lookup(ids=[tf.constant(ids)], cells=[tf.constant(self._numbers(3, 2))])
        else:
            data = bytearray(native.OPTIMIZER)
            data[self._chance.integers(len(data))] = self._chance.integers(256)
            bytes_of = bytes(data) if self._chance.random() < 0.5 else native.OPTIMIZER
            ids = tf.constant(self._numbers(3, ROWS))
            native.update(optimizers=[bytes_of], ids=[ids])

    def _step(self) -> None:
        """Starts a step. If a core has no batch, the step waits until another call ends it."""
        if self._waiting is not None:
            return
        device = self._devices[self._cores]
        shapes = [[BATCH, DIM], [BATCH, LENGTH, DIM]]
        value = float(self._chance.choice([1.0, 0.0, np.nan, 1e30], p=[0.7, 0.1, 0.1, 0.1]))
        gradients = [[np.full(shape, value) for shape in shapes] for _ in range(self._cores)]
        call = device.look_up if self._chance.random() < 0.3 else lambda: device.step(gradients)
        self._waiting = soft.Waiting(call)


def _is_large(config: bytes) -> bool:
    read = tf_compat.TPUEmbeddingConfiguration.FromString(config)
    tables = [table.vocabulary_size * table.dimension for table in read.table_descriptor]
    cells = [int(np.prod(list(one.input_shape), dtype=object)) for one in read.feature_descriptor]
    return max([*tables, *cells], default=0) > 10_000


def _device(num_cores: int) -> soft.Device:
    spec = EngineSpec(
        (
            TableSpec("words", ROWS, DIM, "mean", Adagrad(0.5)),
            TableSpec("users", ROWS, DIM, "sum", Adagrad(0.5)),
        ),
        (FeatureSpec("title", "words"), FeatureSpec("recent", "users")),
    )
    return soft.Device(spec, [[BATCH], [BATCH, LENGTH]], num_cores=num_cores)


def _fitting(chance: np.random.Generator) -> list[soft.Ids]:
    ids = chance.integers(0, ROWS, BATCH)
    return [soft.dense(ids), soft.sparse([[0, 0, 0], [1, 1, 0], [2, 0, 0]], ids)]


def main(seed: int, count: int) -> None:
    hostile = Hostile(seed)
    hostile.run(count)
    sys.stdout.write(json.dumps(hostile.outcomes) + "\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
