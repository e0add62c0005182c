"""A million calls that no program would make: malformed, misplaced, in the middle of a step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from compat_tests.support.hostile import Hostile

SEEDS, PER_SEED = 20, 50_000
"""A process of its own for each seed: in one alone TensorFlow keeps what every call was made of."""

SOME = (
    "configure done",
    "configure refused",
    "enqueue done",
    "enqueue refused",
    "enqueue_what_fits done",
    "native done",
    "native refused",
    "outside refused",
    "step done after it waited",
    "step refused while it waited",
    "transfer done",
    "transfer refused",
)
"""What happens again and again: none of the kinds of calls has run dry."""


def check(outcomes: dict[str, Any], count: int, share: float) -> None:
    """Checks that all calls were made, and each kind often enough."""
    total = sum(number for name, number in outcomes.items() if "waited" not in name)
    assert total == count
    for name in SOME:
        assert outcomes.get(name, 0) >= share * count, f"{name}: {outcomes}"


def test_hundreds_of_hostile_calls_are_errors_or_go_through() -> None:
    """Of a sample of hostile calls none ends the process: bytes, shapes, ids and orders."""
    hostile = Hostile(0)
    hostile.run(600)
    check(hostile.outcomes, 600, 0.003)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_a_million_hostile_calls_are_errors_or_go_through(seed: int) -> None:
    """Of a million hostile calls none ends the process, and none waits for ever.

    A failure has the seed: `python -m compat_tests.support.hostile SEED COUNT` makes the calls
    again.
    """
    ran = subprocess.run(
        [
            sys.executable,
            "-X",
            "faulthandler",
            "-m",
            "compat_tests.support.hostile",
            f"{seed}",
            f"{PER_SEED}",
        ],
        capture_output=True,
        text=True,
        timeout=1800,
        # Each refusal is a line in the log, too.
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )

    assert ran.returncode == 0, f"seed {seed} of {PER_SEED} calls: {ran.stderr[-3000:]}"
    check(json.loads(ran.stdout.splitlines()[-1]), PER_SEED, 0.003)
