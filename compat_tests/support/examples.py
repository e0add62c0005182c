"""The example programs with TPUEstimators, and their new forms by `migrate`."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable

from compat_tests.support.paths import EXAMPLES as FOLDER
from estimator_bridge.migrate import Rewritten

EXAMPLES = [
    path for path in sorted(FOLDER.glob("*/train.py")) if "TPUEstimator(" in path.read_text()
]
"""The examples to which the tf2 form applies. The others train canned estimators."""


@functools.cache
def rewritten(rewrite: Callable[[str], Rewritten], path: pathlib.Path) -> Rewritten:
    """Returns the new form of an example, which is computed once for all tests."""
    return rewrite(path.read_text())
