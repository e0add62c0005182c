"""Saves checkpoints, warm-starts from them, and exports models."""
