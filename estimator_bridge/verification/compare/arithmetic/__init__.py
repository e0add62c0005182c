"""Computes lookups and updates again from recorded values."""
