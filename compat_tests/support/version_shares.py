"""Which tests are shared between the versions of TensorFlow: each is tried on one of them.

These are tests of what does not depend on the version, or of matrices so large that a half of their
entries tells of a version what it has changed. What compares with stock is tried wherever stock is.
"""

from __future__ import annotations

import pathlib
import zlib

THOROUGH = ("convert", "engine", "native", "serving", "tpu", "translation")
"""Folders, below the suite's, whose tests are shared in the other tiers, too: matrices."""

QUICK = (*THOROUGH, "migrate", "project", "verify/test_verify_power.py")
"""Folders and files whose quick tests are shared."""

NUM_PARTS = 3
"""One part is TensorFlow 2.15's, which compares with stock besides; the others are the later's."""


def is_shared(nodeid: str, thorough: bool = False) -> bool:
    """Returns whether a test, by pytest's name for it, is tried on one of the versions."""
    file = pathlib.PurePath(_in_suite(nodeid).partition("::")[0])
    parents = {str(parent) for parent in (file, *file.parents)}
    return "stock" not in nodeid and not parents.isdisjoint(THOROUGH if thorough else QUICK)


def is_tried_by(nodeid: str, version: str, group: str = "") -> bool:
    """Returns whether a shared test is tried on a version of TensorFlow, in every process alike.

    Args:
        group: the name of a group of tests that share an engine; one version tries all of them.
    """
    name = _in_suite(nodeid)
    drawn = f"{name.partition('[')[0]}[{group}]" if group else name
    return (zlib.crc32(drawn.encode()) % NUM_PARTS == 0) == version.startswith("2.15.")


def _in_suite(nodeid: str) -> str:
    return nodeid.partition("compat_tests/")[2]
