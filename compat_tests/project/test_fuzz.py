"""Whatever is damaged, it is read or refused in words: programs, checkpoints, configs, batches."""

from __future__ import annotations

import collections
import random
import sys

import pytest

from compat_tests.support import fuzz
from estimator_bridge.run import install

COUNT = 2_000
"""The cases of a kind in the soak tier."""


@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_what_was_found_stays_mended(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases that once were neither taken nor refused are; and two more, of any seed."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    more = [random.SystemRandom().randrange(1 << 30) for _ in range(2)]
    try:
        for seed in (*fuzz.FOUND[kind], *more):
            assert fuzz.case(kind, seed) in ("taken", "refused")
    finally:
        install.uninstall()


@pytest.mark.soak
@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_any_damage_is_told(kind: str) -> None:
    """Of thousands of cases each is taken or refused, and there are both."""
    first = random.SystemRandom().randrange(1 << 30)
    outcomes = collections.Counter(fuzz.case(kind, first + number) for number in range(COUNT))
    assert set(outcomes) == {"taken", "refused"}, outcomes
