"""The version of the package, where every module may read it: this one imports nothing."""

from __future__ import annotations

__version__ = "0.2.0"
