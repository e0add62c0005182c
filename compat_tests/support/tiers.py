"""Cases of which few are in the quick tier."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def quick(chosen: Collection[str], names: Iterable[str]) -> list[Any]:
    """Returns the names of cases for `parametrize`, all but the chosen ones marked `full`."""
    return [
        name if name in chosen else pytest.param(name, marks=pytest.mark.full) for name in names
    ]
