"""Damaged programs, checkpoints, configs and batches are read, or refused with a message."""

from __future__ import annotations

import collections
import random
import sys
from collections.abc import Iterator

import pytest

from compat_tests.support import fuzz
from estimator_bridge.run import install

COUNT = 2_000
"""The cases of a kind in the soak tier."""


FEW = 25
"""Of any seed, in the thorough tier. The quick one has none: what fails there fails again."""


@pytest.fixture
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Takes back what `run` changes in this process."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    install.uninstall()


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_what_was_found_stays_mended(kind: str) -> None:
    """Inputs of the first two seeds, and those that once failed, are accepted or refused."""
    for seed in (0, 1, *fuzz.FOUND[kind]):
        assert fuzz.case(kind, seed) in ("taken", "refused")


@pytest.mark.full
@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_some_damage_is_told(kind: str) -> None:
    for _ in range(FEW):
        assert fuzz.case(kind, random.SystemRandom().randrange(1 << 30)) in ("taken", "refused")


@pytest.mark.soak
@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_any_damage_is_told(kind: str) -> None:
    """Thousands of random inputs are accepted or refused, and both occur."""
    first = random.SystemRandom().randrange(1 << 30)
    outcomes = collections.Counter(fuzz.case(kind, first + number) for number in range(COUNT))
    assert set(outcomes) == {"taken", "refused"}, outcomes
