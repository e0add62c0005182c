"""Watches one job without a second side: checks invariants in every step."""
