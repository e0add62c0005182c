"""`verify` finds seeded faults and names them, and takes no honest sides for unequal."""

from __future__ import annotations

import pytest

from compat_tests.verify.power import honest, measure
from compat_tests.verify.power.comparing import Comparer
from compat_tests.verify.power.fault import BATCH_SIZES
from compat_tests.verify.power.faults import FAULTS

QUICK = (
    "Adam's bias",
    "rate times 3",
    "mean as sum",
    "cut too early",
    "skipped step",
    "loss",
)
"""Faults of one program, so that side A is recorded once."""
KINDS = {
    *("optimizer", "clip", "decay", "schedule", "slots", "combiner", "weights", "duplicates"),
    *("truncation", "sharding", "pipelining", "seeds", "metrics", "predictions", "exports"),
    *("late steps", "one row", "one feature", "rare rows", "large batch"),
}


@pytest.fixture(scope="module")
def comparer(tmp_path_factory: pytest.TempPathFactory) -> Comparer:
    """A comparer whose sides A serve all tests."""
    return Comparer(tmp_path_factory.mktemp("power"))


@pytest.mark.parametrize("name", QUICK)
def test_a_fault_is_found_and_named(name: str, comparer: Comparer) -> None:
    """Each of some faults is found, and named by its cause."""
    judged, result = measure.judge(comparer, name, 64)

    assert judged.found, str(result)
    assert judged.named, f"{judged.causes}, not {sorted(FAULTS[name].causes)}\n{result}"


def quick_pairs() -> list[honest.Pair]:
    """Returns the pairs of two programs at the smallest batch."""
    return [
        pair
        for pair in honest.pairs()
        if pair.program == "plain" and pair.a.program.batch_size == min(BATCH_SIZES)
    ]


@pytest.mark.parametrize("pair", quick_pairs(), ids=lambda pair: pair.title)
def test_honest_sides_are_equal(pair: honest.Pair, comparer: Comparer) -> None:
    """Other kernels, orders and roundings of sums are no difference."""
    judged, result = measure.judge_pair(comparer, pair)

    assert judged.equal, str(result)


def test_the_table_covers_every_kind_of_fault() -> None:
    """There are at least 60 faults, of every kind, each with a cause that verify should name."""
    kinds = {fault.kind for fault in FAULTS.values()}

    assert len(FAULTS) >= 60
    assert kinds == KINDS
    assert all(fault.causes and fault.text for fault in FAULTS.values())
