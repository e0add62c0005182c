"""Native ops with C++ kernels, which come from the wheel or are compiled here at first use.

A library of ops is for one version of TensorFlow and one kind of processor.
"""

from __future__ import annotations

import hashlib
import pathlib
import re

SOURCES = pathlib.Path(__file__).parent

RULES = frozenset(
    re.findall(
        r'^#include "rules/optimizers/(\w+)\.h"$',
        (SOURCES / "rules" / "optimizers.h").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
)
"""The optimizers that have a rule in C++, under their names in the optimizers' proto."""


def source_digest() -> str:
    """Computes a digest of the sources.

    Processes that exchange messages must have equal digests.
    """
    digest = hashlib.sha256()
    for path in sorted(path for kind in ("*.h", "*.cc") for path in SOURCES.rglob(kind)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
