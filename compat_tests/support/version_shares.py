"""Which quick tests are shared between the versions of TensorFlow: each is tried on one of them.

These are tests of what does not depend on the version, or of matrices so large that a half of their
entries tells of a version what it has changed. What compares with stock is tried wherever stock is.
The other tiers try every test on both versions.
"""

from __future__ import annotations

import pathlib
import zlib

SHARED = (
    *("convert", "engine", "migrate", "native", "project", "serving", "tpu", "translation"),
    "verify/test_verify_power.py",
)
"""Folders and files, below the suite's."""

NUM_PARTS = 3
"""One part is TensorFlow 2.15's, which compares with stock besides; the others are the later's."""


def is_shared(nodeid: str) -> bool:
    """Returns whether a test, by pytest's name for it, is tried on one of the versions."""
    file = pathlib.PurePath(_in_suite(nodeid).partition("::")[0])
    parents = {str(parent) for parent in (file, *file.parents)}
    return "stock" not in nodeid and not parents.isdisjoint(SHARED)


def is_tried_by(nodeid: str, version: str) -> bool:
    """Returns whether a shared test is tried on a version of TensorFlow, in every process alike."""
    part = zlib.crc32(_in_suite(nodeid).encode()) % NUM_PARTS
    return (part == 0) == version.startswith("2.15.")


def _in_suite(nodeid: str) -> str:
    return nodeid.partition("compat_tests/")[2]
