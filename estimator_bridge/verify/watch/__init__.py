"""Watches one job, and checks in every step what must hold of it without a second side."""
