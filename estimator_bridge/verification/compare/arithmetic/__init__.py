"""Lookups and updates computed again from recorded numbers."""
