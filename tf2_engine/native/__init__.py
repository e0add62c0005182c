"""Kernels in C++, prebuilt or compiled where they run.

A library fits one version of TensorFlow and one kind of processor. A wheel holds the sources, and
libraries for the versions of TensorFlow and the processors that are most common; where none of them
fits one is made at first use, or by `estimator-bridge build-native`. See `build` for where it is
kept, `prebuilt` for what fits, and `loading` for when it is used.
"""

from __future__ import annotations

import hashlib
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


def source_digest() -> str:
    """Returns a digest of the sources: processes that exchange messages must have the same ones."""
    digest = hashlib.sha256()
    for path in sorted(path for kind in ("*.h", "*.cc") for path in SOURCES.rglob(kind)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
