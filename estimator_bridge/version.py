"""The package's version. Imports nothing, so that every module can import it."""

from __future__ import annotations

__version__ = "0.2.0"
