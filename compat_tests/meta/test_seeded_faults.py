"""The conformance suite catches ten faults, so it does not merely repeat the engine."""

from __future__ import annotations

import re

import pytest

from compat_tests.meta import seeded_faults
from compat_tests.support import fresh, oracles
from compat_tests.verify import test_verify


def test_the_faults_are_those_that_verify_finds() -> None:
    """Both tests have the same faults, each caught by a file of the conformance suite."""
    assert set(seeded_faults.FAULTS) == set(test_verify.FAULTS)
    assert {fault.file for fault in seeded_faults.FAULTS.values()} <= set(oracles.FILES)


@pytest.mark.full
@pytest.mark.parametrize("name", seeded_faults.FAULTS)
def test_a_fault_is_caught(name: str) -> None:
    """With one fault in the engine a test of the suite fails, and fails by its assertion."""
    ran = fresh.python("-m", seeded_faults.__name__, name)

    assert ran.returncode == pytest.ExitCode.TESTS_FAILED, ran.stdout + ran.stderr
    assert re.search(r"^E +AssertionError", ran.stdout, re.MULTILINE), ran.stdout
    assert "1 failed" in ran.stdout.splitlines()[-1], ran.stdout
