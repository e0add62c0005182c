"""Recomputes lookups and updates from recorded values."""
