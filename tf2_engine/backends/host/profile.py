"""Lookup statistics of a job, kept in `profile_data_directory`.

The profiler counts the ids of 3 % of the samples, in total and per host. At the end of a training
loop, the counts of a table are added to its file if at least `MIN_SAMPLES` samples were counted.
"""

from __future__ import annotations

import dataclasses
import fcntl
import functools
import hashlib
import json
import os
import tempfile

import numpy as np
import tensorflow as tf

from tf2_engine import log, sharding
from tf2_engine.backends.host.kernels import KernelSet, StepOccurrences
from tf2_engine.batch import Occurrences
from tf2_engine.plan import Plan, TablePlan
from tf2_engine.types import Array, Op, Tensor, Variable

EVERY = 33
"""One in this many samples is counted, which is 3 %."""

MIN_SAMPLES = 1000
"""A table's counts are written once this many samples were counted."""

_log = log.PlainLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Counts:
    """The counted lookups in one table: samples (over all features), ids, and ids per host."""

    samples: int
    ids: int
    per_shard: tuple[int, ...]

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.samples + other.samples,
            self.ids + other.ids,
            tuple(a + b for a, b in zip(self.per_shard, other.per_shard, strict=True)),
        )

    @property
    def ids_per_sample(self) -> float:
        return self.ids / self.samples if self.samples else 0.0

    @property
    def balance(self) -> float:
        """The largest number of ids on one host, divided by the mean over all hosts."""
        return max(self.per_shard) * len(self.per_shard) / self.ids if self.ids else 1.0


class Profiler:
    """Counts the lookups in the tables of a plan.

    Each table has a variable, [3 + hosts] int64: the number of counted samples, the number of their
    ids in total and on each host, and the number of all samples so far.
    """

    def __init__(self, plan: Plan, kernels: KernelSet) -> None:
        assert plan.profile_data_directory is not None
        self._plan, self._kernels = plan, kernels
        self._directory = plan.profile_data_directory
        self._counters = {
            table.name: _counter(3 + plan.num_hosts, f"profile/{table.name}")
            for table in plan.tables
        }
        for table in plan.tables:
            counts = read(self._directory, plan, table)
            if counts is not None:
                _log.info("%s", report(table, counts))

    def count(self, per_core: StepOccurrences) -> list[Op]:
        ops = []
        for table in self._plan.tables:
            counter = self._counters[table.name]
            passed = counter.read_value()[-1]
            seen: Tensor = tf.zeros([3 + self._plan.num_hosts], tf.int64)
            for number, core in enumerate(per_core):
                for position in self._plan.features_of(table):
                    before = passed + seen[-1]
                    with self._kernels.on_core(number):
                        of_core = self._seen(table, core[position], before)
                    seen = seen + of_core
            ops.append(counter.assign_add(seen))
        return ops

    def write(self) -> Op:
        ops = []
        for table in self._plan.tables:
            counter = self._counters[table.name]
            merge_table = functools.partial(self._merge, table)
            written = tf.numpy_function(merge_table, [counter.read_value()], tf.int64)
            with tf.control_dependencies([written]):
                ops.append(counter.assign_sub(tf.ensure_shape(written, counter.shape)))
        return tf.group(*ops)

    def _seen(self, table: TablePlan, occurrences: Occurrences, passed: Tensor) -> Tensor:
        ids, cell, _, cells = occurrences.explicit()
        ids = tf.boolean_mask(ids, tf.equal((cell + passed) % EVERY, 0))
        hosts, strategy = self._plan.num_hosts, self._plan.partition_strategy
        shard = sharding.shard_of(ids, table.rows, hosts, strategy, maximum=tf.maximum)
        per_shard = tf.math.bincount(
            tf.cast(shard, tf.int32), minlength=hosts, maxlength=hosts, dtype=tf.int64
        )
        # The number of multiples of EVERY between `passed` and `passed` + `cells`.
        samples = (passed + cells + EVERY - 1) // EVERY - (passed + EVERY - 1) // EVERY
        return tf.concat([[samples, tf.size(ids, out_type=tf.int64)], per_shard, [cells]], 0)

    def _merge(self, table: TablePlan, values: Array) -> Array:
        counts = Counts(int(values[0]), int(values[1]), tuple(map(int, values[2:-1])))
        if counts.samples < MIN_SAMPLES:
            return np.zeros_like(values)
        merge(self._directory, self._plan, table, counts)
        return np.append(values[:-1], np.int64(0))  # The number of all samples is not reset.


def path_of(directory: str, plan: Plan, table: TablePlan) -> str:
    of_table = (table.name, table.rows, table.dim, len(plan.features_of(table)))
    key = (*of_table, plan.partition_strategy, plan.num_hosts)
    digest = hashlib.sha256(repr(key).encode()).hexdigest()[:32]
    return os.path.join(directory, f"{digest}.json")


def read(directory: str, plan: Plan, table: TablePlan) -> Counts | None:
    path = path_of(directory, plan, table)
    try:
        with open(path, encoding="utf-8") as file:
            stored = json.loads(file.read(1 << 20))
        counts = Counts(
            int(stored["samples"]), int(stored["ids"]), tuple(map(int, stored["per_shard"]))
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        _log.warning("The lookup statistics in %s cannot be read and are ignored: %s", path, error)
        return None
    return counts if len(counts.per_shard) == plan.num_hosts else None


def merge(directory: str, plan: Plan, table: TablePlan, counts: Counts) -> None:
    os.makedirs(directory, exist_ok=True)
    path = path_of(directory, plan, table)
    with open(os.path.join(directory, ".lock"), "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        earlier = read(directory, plan, table)
        total = counts if earlier is None else earlier + counts
        content = {"table": table.name, **dataclasses.asdict(total)}
        handle, temporary = tempfile.mkstemp(dir=directory)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.replace(temporary, path)


def report(table: TablePlan, counts: Counts) -> str:
    return (
        f"Table {table.name!r}: {counts.ids_per_sample:.2f} ids per sample, the busiest of "
        f"{len(counts.per_shard)} hosts has {counts.balance:.2f} times the average "
        f"({counts.samples} samples profiled)."
    )


def _counter(size: int, name: str) -> Variable:
    return tf.compat.v1.Variable(
        tf.zeros([size], tf.int64),
        trainable=False,
        name=name,
        use_resource=True,
        # The counts belong to the process and are not saved in checkpoints.
        collections=[tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
    )
