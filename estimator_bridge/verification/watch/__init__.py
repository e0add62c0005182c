"""Watches one job, and checks its invariants in every step, without a second side."""
