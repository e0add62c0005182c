"""`verify` finds and names seeded faults, and does not call honest sides unequal."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from compat_tests.support.legacy_specs import needs_stock
from compat_tests.verify.power import honest, measure
from compat_tests.verify.power.comparing import Comparer, Run
from compat_tests.verify.power.fault import BATCH_SIZES
from compat_tests.verify.power.faults import FAULTS
from compat_tests.verify.power.program import Model, Program
from estimator_bridge.recording.files import VARIABLES

FULL, SOAK = pytest.mark.full, pytest.mark.soak
SIZES = [pytest.param(size, marks=FULL if size == 64 else SOAK) for size in BATCH_SIZES]
QUICK = ("Adam's bias", "cut too early", "skipped step", "loss", "rate times 1.001", "frozen row")
"""Faults of an optimizer, a lookup, a step, the model, a schedule and a row."""

FOUND, NAMED = 0.95, 0.85
"""The shares of the faults that must be found, and found with the right cause: 57 and 51 of 60."""


@pytest.fixture(scope="module")
def comparer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Comparer]:
    """A comparer that all tests share, so that each side A is recorded once."""
    with contextlib.closing(Comparer(tmp_path_factory.mktemp("power"))) as shared:
        yield shared


@pytest.mark.parametrize("name", QUICK)
def test_a_fault_is_found_and_named(name: str, comparer: Comparer) -> None:
    judged, result = measure.judge(comparer, name, 64)

    assert judged.detected, str(result)
    assert judged.named, f"{judged.causes}, not {sorted(FAULTS[name].causes)}\n{result}"


@pytest.mark.parametrize("size", SIZES)
def test_faults_are_found_and_named(size: int, tmp_path: pathlib.Path) -> None:
    """At each batch size 19 in 20 faults are found, and 17 in 20 have the right cause."""
    judged = [one for one, _ in measure.judge_all(tmp_path, list(FAULTS), (size,))]
    missed = [one.name for one in judged if not one.detected]
    misnamed = {one.name: one.causes for one in judged if one.detected and not one.named}

    assert len(missed) <= (1 - FOUND) * len(FAULTS), missed
    assert len(missed) + len(misnamed) <= (1 - NAMED) * len(FAULTS), (missed, misnamed)


@pytest.mark.parametrize("size", SIZES)
def test_no_honest_pair_differs(size: int, tmp_path: pathlib.Path) -> None:
    pairs = [pair for pair in honest.pairs() if pair.a.program.batch_size == size]
    with contextlib.closing(Comparer(tmp_path)) as comparer:
        judged = [measure.judge_pair(comparer, pair)[0] for pair in pairs]

    assert [(one.title, one.why) for one in judged if one.is_alarm] == []


def kind_of(pair: honest.Pair) -> str:
    """Returns what side B does differently; the kernels beside stock depend on the seed."""
    return pair.a.side if pair.a.side == "stock-tpu" else pair.name


def quick_pairs() -> list[honest.Pair]:
    """Returns a pair of every kind with the smallest program, native ops with one that clips."""
    small = [pair for pair in honest.pairs() if pair.a.program.batch_size == 64]
    chosen = {kind_of(pair): pair for pair in reversed(small) if pair.program == "small"}
    clipped = {pair.name: pair for pair in small if pair.program == "clipped"}
    return [*{**chosen, "native ops": clipped["native ops"]}.values()]


@pytest.mark.parametrize("pair", quick_pairs(), ids=lambda pair: pair.title)
def test_honest_sides_are_equal(pair: honest.Pair, comparer: Comparer) -> None:
    """Other kernels, summation orders and roundings are no difference."""
    judged, result = measure.judge_pair(comparer, pair)

    assert not judged.is_alarm, str(result)


@needs_stock
def test_a_rate_that_stock_computes_late_is_of_the_same_step(comparer: Comparer) -> None:
    """Stock's graph leaves open whether a rate reads the step before or after its increment."""

    def pause() -> bool:
        time.sleep(0.1)
        return True

    def late(step: Any) -> Any:
        with tf.control_dependencies([tf.numpy_function(pause, [], tf.bool)]):
            return 0.1 * 0.5 ** tf.cast(step, tf.float32)

    program = Program(tables=("places",), rates={"places": late}, steps=3, predicts=False)
    result = comparer.compare("late", Run(program, "stock-tpu"), Run(program, "bridge-native"))

    assert result.equal, str(result)


_PLAIN = Program(
    tables=("users", "flags", "rare"),
    model=Model(amplified=("", 0.0), ticks=0.0, normed=False, dropout=0.0),
)


def visible_divergences(directory: pathlib.Path, batch_size: int, steps: int) -> dict[str, float]:
    """Returns the smallest visible divergence of each variable, by name."""

    # The sum of the samples' losses: the mean of so many moves slots by less than they can show.
    def summed(loss: Any, logits: Any, labels: Any) -> Any:
        return loss * float(batch_size)

    model = dataclasses.replace(_PLAIN.model, loss=summed)
    program = dataclasses.replace(_PLAIN, model=model, batch_size=batch_size, steps=steps)
    with contextlib.closing(Comparer(directory)) as comparer:
        result = comparer.compare("plain", Run(program), Run(program, "bridge-native"))
    assert result.equal, str(result)
    return {
        one.name: one.visible
        for one in result.series
        if one.group == VARIABLES and np.isfinite(one.visible)
    }


@pytest.mark.parametrize(
    "steps", [pytest.param(20, marks=pytest.mark.full), pytest.param(1000, marks=pytest.mark.soak)]
)
def test_large_batches_and_many_steps_hide_nothing(steps: int, tmp_path: pathlib.Path) -> None:
    """The smallest visible divergences at batch 65,536 are at most 4 times those at batch 64."""
    small = visible_divergences(tmp_path / "small", 64, 20)
    large = visible_divergences(tmp_path / "large", 65536, steps)

    assert small.keys() == large.keys()
    assert {
        name: large[name] / small[name] for name in small if large[name] > 4 * small[name]
    } == {}


@pytest.mark.full
def test_pairs_across_two_processes_are_equal(comparer: Comparer, tmp_path: pathlib.Path) -> None:
    """A side recorded by another interpreter is compared like one of this process.

    If it fails there, the error has its last line.
    """
    across = honest.pairs_across(sys.executable)
    pair = next(pair for pair in across if pair.program == "small")
    judged, result = measure.judge_pair(comparer, pair)
    assert judged.status == "equal", str(result)
    assert judged.title.endswith(f"TensorFlow {tf.__version__}")

    fails = pair._replace(b=dataclasses.replace(pair.b, side="gone"))
    judged, _ = measure.judge_pair(Comparer(tmp_path), fails)
    assert (judged.status, judged.why) == ("unknown", "RuntimeError: KeyError: 'gone'")
