"""Kernels in C++, compiled where they run.

A wheel holds the sources alone: a library fits one version of TensorFlow, one compiler and one
kind of processor. It is made at first use, or by `estimator-bridge build-native`; see `build` for
where it is kept and `loading` for when it is used.
"""

from __future__ import annotations

import pathlib
import re

SOURCES = pathlib.Path(__file__).parent
"""The folder of the sources."""

RULES = frozenset(
    re.findall(
        r'^#include "rules/optimizers/(\w+)\.h"$',
        (SOURCES / "rules" / "optimizers.h").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
)
"""The optimizers that have a rule in C++, by their field in the proto."""
