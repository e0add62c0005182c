"""Forked processes train, or report that they cannot, and never wait forever."""

from __future__ import annotations

import os
import pathlib

import pytest

from compat_tests.support import fresh
from compat_tests.support.paths import ROOT


@pytest.mark.full
@pytest.mark.parametrize("kind", ["engine", "estimator", "trainer"])
def test_a_fork_trains_or_says_why_not(kind: str, tmp_path: pathlib.Path) -> None:
    """A fork trains what was made before it; after a training it is refused, and the parent is not.

    Without the refusal its sessions and functions would wait for ever. They may do so, too, in a
    fork beside which a thread of TensorFlow starts: what a fork trains is made without any.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_USE_LEGACY_KERAS": "1"}
    ran = fresh.python("-m", "compat_tests.programs.forked", kind, tmp_path, env=environment)
    assert ran.returncode == 0, ran.stderr
    lines = [line for line in ran.stdout.splitlines() if line.split(" ")[0] in NAMES]
    # A Trainer runs ops when it is made.
    expected = [] if kind == "trainer" else ["made with 0 threads", "before works"]
    expected += ["parent works", "after OutOfOrder", "parent works"]
    assert [line.partition(":")[0] for line in lines] == expected, ran.stdout
    (refused,) = (line for line in lines if line.startswith("after"))
    assert "is a fork of process" in refused
    assert "get_context('spawn')" in refused


NAMES = ("made", "before", "after", "parent")
