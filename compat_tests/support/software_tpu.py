"""Drives the software TPU op by op without an engine, for tests of the device itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from compat_tests.conftest import Array, rows_of_shard
from compat_tests.support import fake_tpu
from tf2_engine import EngineSpec, soft_tpu
from tf2_engine.config_proto import config_proto
from tf2_engine.plan import make_plan
from tf2_engine.tables import PARAMETERS

NO_WEIGHTS = np.zeros([0], np.float32)


class Ids(NamedTuple):
    """The tensors of one feature for EnqueueTPUEmbeddingArbitraryTensorBatch."""

    index: Any
    ids: Any
    weights: Any = NO_WEIGHTS


def dense(ids: Any) -> Ids:
    """Creates ids without indices, one for each cell."""
    return Ids(np.zeros([0], np.int32), np.asarray(ids, np.int64))


def sparse(indices: Any, ids: Any, weights: Any = None) -> Ids:
    """Creates ids with indices, [num_ids, axes + 1]."""
    weight_array = NO_WEIGHTS if weights is None else np.asarray(weights, np.float32)
    return Ids(np.asarray(indices, np.int32), np.asarray(ids, np.int64), weight_array)


def ragged(row_splits: Any, ids: Any, weights: Any = None) -> Ids:
    return sparse(row_splits, ids, weights)


class Device:
    """A software TPU that is configured for a spec.

    Attributes:
        plan: the plan for which the TPU is configured.
        strategy: the strategy with the TPU's cores.
    """

    def __init__(
        self,
        spec: EngineSpec,
        output_shapes: Sequence[Sequence[int]],
        *,
        num_cores: int = 1,
        num_hosts: int = 1,
        training: bool = True,
    ) -> None:
        """Starts and configures the TPU. The tables are zeros, and the slots have initial values.

        Args:
            output_shapes: the shape of each feature's activation on one core, without the width.
            num_cores: the number on all hosts together. The hosts are in this process.
        """
        self.plan = make_plan(
            spec,
            [tuple(shape) for shape in output_shapes],
            num_hosts=num_hosts,
            num_cores=num_cores,
            training=training,
        )
        self.strategy = soft_tpu.SoftTPUStrategy(num_cores)
        self.config = config_proto(self.plan).SerializeToString()
        tf.raw_ops.ConfigureTPUEmbedding(config=self.config)
        self._step = tf.function(self._in_step, autograph=False)
        self._look_up = tf.function(self._in_look_up, autograph=False)
        for table in self.plan.tables:
            shape = (table.rows, table.dim)
            slots = table.optimizer.slot_initial_values()
            self.load(
                table.name,
                {PARAMETERS: np.zeros(shape), **{k: np.full(shape, v) for k, v in slots.items()}},
            )

    def load(self, name: str, arrays: Mapping[str, Any]) -> None:
        """Loads parameters and slots, [rows, dim] each, shard by shard."""
        table = self._table(name)
        op = getattr(tf.raw_ops, f"LoadTPUEmbedding{table.optimizer.op_name}Parameters")
        for shard in range(self.plan.num_hosts):
            rows = self._rows(table, shard)
            values = {kind: np.asarray(array, np.float32)[rows] for kind, array in arrays.items()}
            op(**values, **self._attributes(name, shard))

    def load_parameters(self, name: str, parameters: Any) -> None:
        self.load(name, {**self.read(name), PARAMETERS: parameters})

    def read(self, name: str) -> dict[str, Array]:
        """Retrieves parameters and slots, [rows, dim] each."""
        table = self._table(name)
        op = getattr(tf.raw_ops, f"RetrieveTPUEmbedding{table.optimizer.op_name}Parameters")
        kinds = (PARAMETERS, *table.optimizer.slot_names)
        arrays = {kind: np.empty((table.rows, table.dim), np.float32) for kind in kinds}
        for shard in range(self.plan.num_hosts):
            values = op(**self._attributes(name, shard))
            for kind, value in zip(kinds, values if len(kinds) > 1 else [values], strict=True):
                arrays[kind][self._rows(table, shard)] = value.numpy()
        return arrays

    def enqueue(self, core: int, inputs: Sequence[Ids], mode: str = "train") -> None:
        tf.raw_ops.EnqueueTPUEmbeddingArbitraryTensorBatch(
            sample_indices_or_row_splits=[one.index for one in inputs],
            embedding_indices=[one.ids for one in inputs],
            aggregation_weights=[one.weights for one in inputs],
            mode_override=mode,
            device_ordinal=core,
            combiners=[feature.table.combiner for feature in self.plan.features],
        )

    def enqueue_all(self, cores: Sequence[Sequence[Ids]], mode: str = "train") -> None:
        for core, inputs in enumerate(cores):
            self.enqueue(core, inputs, mode)

    def step(
        self, gradients: Sequence[Sequence[Any]], rates: Sequence[float] = ()
    ) -> list[list[Array]]:
        """Looks up and sends gradients on all cores; returns activations by core and feature."""
        parts = [[tf.constant(gradient, tf.float32) for gradient in core] for core in gradients]
        distributed = fake_tpu.distribute(self.strategy, parts)
        return self._per_core(self._step(distributed, [tf.constant(rate) for rate in rates]))

    def look_up(self) -> list[list[Array]]:
        """Looks up on all cores; returns activations by core and feature."""
        return self._per_core(self._look_up())

    def receive(self) -> list[Any]:
        return list(
            tf.raw_ops.RecvTPUEmbeddingActivations(
                num_outputs=len(self.plan.features), config=self.config
            )
        )

    def send(self, gradients: Sequence[Any], rates: Sequence[Any] = ()) -> None:
        tf.raw_ops.SendTPUEmbeddingGradients(
            inputs=list(gradients), learning_rates=list(rates), config=self.config
        )

    def _in_step(self, gradients: Any, rates: Any) -> Any:
        def core(core_gradients: Any) -> Any:
            activations = self.receive()
            self.send(core_gradients, rates)
            return activations

        return self.strategy.run(core, args=(gradients,))

    def _in_look_up(self) -> Any:
        return self.strategy.run(self.receive)

    def _per_core(self, features: Any) -> list[list[Array]]:
        per_feature = [self.strategy.experimental_local_results(value) for value in features]
        return [[value.numpy() for value in core] for core in zip(*per_feature, strict=True)]

    def _table(self, name: str) -> Any:
        return next(table for table in self.plan.tables if table.name == name)

    def _rows(self, table: Any, shard: int) -> Any:
        return rows_of_shard(table.rows, self.plan.num_hosts, shard, self.plan.partition_strategy)

    def _attributes(self, name: str, shard: int) -> dict[str, Any]:
        return {"table_name": name, "num_shards": self.plan.num_hosts, "shard_id": shard}


class Waiting:
    """A call that waits for the software TPU in its own thread.

    Attributes:
        error: the error that the call raised, if any.
        result: the result that the call returned.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        """Starts the call. Returns when one of the call's ops waits or the call has ended."""
        self.error: Exception | None = None
        self.result: Any = None
        before = soft_tpu.num_waiting()
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 60
        while self._thread.is_alive() and soft_tpu.num_waiting() <= before:
            assert time.monotonic() < deadline, "the call neither waits nor ends"
            time.sleep(0.002)

    @property
    def waits(self) -> bool:
        return self._thread.is_alive()

    def end(self, again: Callable[[], Any] | None = None) -> None:
        """Waits until the call has ended.

        Args:
            again: repeats the action that ended the ops waiting on the device. This is for an op of
                the call that began to wait only after the action. An op that had been waiting must
                end without `again`; otherwise the call does not end here either.
        """
        deadline = time.monotonic() + 60
        while self._thread.is_alive() and time.monotonic() < deadline:
            self._thread.join(60 if again is None else 0.5)
            if again is not None and self._thread.is_alive() and soft_tpu.num_waiting():
                again()
        assert not self._thread.is_alive(), "the call does not end"

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self.result = call()
        except tf.errors.OpError as error:
            self.error = error
