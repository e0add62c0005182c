"""The search for the causes of a difference: how long it may take, and what it did not try."""

from __future__ import annotations

SECONDS = 60.0
"""The time that a search may take where nobody says otherwise."""
