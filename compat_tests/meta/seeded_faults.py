"""Ten faults in the engine, each with the part of the conformance suite that must catch it.

    python -m compat_tests.meta.seeded_faults "lost weight"

puts a fault into the engine and runs that part. compat_tests/verify/test_verify.py has the same
ten, which `verify` must find.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import tensorflow as tf

from tf2_engine import batch
from tf2_engine.backends.host import HostDriver, driver, kernels, update
from tf2_engine.optimizers.adam import Adam
from tf2_engine.tables import Table

SUITE = pathlib.Path(__file__).parent.parent


class Fault(NamedTuple):
    """A fault in the host driver on TensorFlow's ops, and the tests that find it.

    Attributes:
        owner, name: the attribute, or the entry of a dict, that is replaced.
        wrong: returns the faulty replacement of the original.
        file: a file of the conformance suite.
        select: the tests in it, as for pytest's `-k`.
    """

    owner: Any
    name: str
    wrong: Callable[[Any], Any]
    file: str
    select: str


def _epsilon(update: Any) -> Any:
    return lambda self, *args: update(dataclasses.replace(self, epsilon=2 * self.epsilon), *args)


def _unclipped(clip: Any) -> Any:
    return lambda value, low, high: value


def _swapped_slots(update: Any) -> Any:
    def swapped(self: Any, w: Any, slots: Any, g: Any, lr: Any) -> Any:
        w, slots = update(self, w, slots, g, lr)
        return w, {"momenta": slots["velocities"], "velocities": slots["momenta"]}

    return swapped


def _as_div(gather: Any) -> Any:
    return lambda self, *args: gather(dataclasses.replace(self, strategy="div"), *args)


def _without_weight(read: Any) -> Any:
    return lambda value, weight: read(value, None)


def _cut_too_early(cells: Any) -> Any:
    def cut(feature: Any, raw: Any, per_row: Any) -> Any:
        right = cells(feature, raw, per_row)
        if right.keep is None:
            return right
        return right._replace(keep=raw.index[:, 1] < feature.max_sequence_length - 1)

    return cut


def _other_rate(rate: Any) -> Any:
    def other(table: Any, rates: Any) -> Any:
        return rate(table, rates) if table.rate_tag is None else rates[-1 - table.rate_tag]

    return other


def _scaled_twice(row_gradients: Any) -> Any:
    def scaled(occurrences: Any, gradient: Any) -> Any:
        rows = row_gradients(occurrences, gradient)
        return rows if occurrences.gain is None else occurrences.gain[:, None] * rows

    return scaled


def _stale(configure: Any) -> Any:
    def pipelined(self: Any, plan: Any) -> Any:
        return configure(self, dataclasses.replace(plan, pipeline_execution_with_tensor_core=True))

    return pipelined


def _one_of_each(sum_by_id: Any) -> Any:
    def first(contributions: Any) -> Any:
        ids, gradients, _ = update._joined(contributions).of_each_id()
        distinct, position = tf.unique(ids, out_idx=tf.int64)
        count = tf.size(distinct, out_type=tf.int64)
        places = tf.range(tf.size(ids, out_type=tf.int64))
        return distinct, tf.gather(gradients, tf.math.unsorted_segment_min(places, position, count))

    return first


_OPTIMIZERS, _LOOKUP, _ALL = (
    "engine/test_optimizers.py",
    "engine/test_lookup.py",
    "engine/test_conformance.py",
)
_RULES = "test_rows_follow_the_reference and host"
_STEPS = "test_steps_follow_the_reference and host"

FAULTS = {
    "epsilon": Fault(Adam, "update", _epsilon, _OPTIMIZERS, f"{_RULES} and Adam"),
    "missing clip": Fault(update, "_clip", _unclipped, _OPTIMIZERS, f"{_RULES} and weight"),
    "swapped slots": Fault(Adam, "update", _swapped_slots, _OPTIMIZERS, f"{_RULES} and Adam"),
    "mod read as div": Fault(Table, "gather", _as_div, _ALL, f"{_STEPS} and mod"),
    "lost weight": Fault(
        driver, "read_unchecked", _without_weight, _ALL, f"{_STEPS} and weighted and mean"
    ),
    "off-by-one truncation": Fault(
        batch._CELLS, "sparse", _cut_too_early, _ALL, f"{_STEPS} and sequence"
    ),
    "rate tag swapped": Fault(
        kernels, "rate_of", _other_rate, _OPTIMIZERS, f"{_RULES} and dynamic"
    ),
    "gradient scaled twice": Fault(kernels, "row_gradients", _scaled_twice, _ALL, _STEPS),
    "stale activation": Fault(
        HostDriver, "configure", _stale, "engine/test_pipelining.py", "without_pipelining"
    ),
    "dropped duplicate": Fault(update, "sum_by_id", _one_of_each, _ALL, f"{_STEPS} and SGD"),
}


def main(name: str) -> int:
    """Runs the tests that must fail with a fault; returns pytest's status."""
    fault = FAULTS[name]
    with pytest.MonkeyPatch.context() as patch:
        if isinstance(fault.owner, dict):
            patch.setitem(fault.owner, fault.name, fault.wrong(fault.owner[fault.name]))
        else:
            patch.setattr(fault.owner, fault.name, fault.wrong(getattr(fault.owner, fault.name)))
        arguments = ["-q", "-x", "-m", "not full and not soak", "-p", "no:cacheprovider"]
        return int(pytest.main([*arguments, str(SUITE / fault.file), "-k", fault.select]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
