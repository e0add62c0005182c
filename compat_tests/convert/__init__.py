"""Tests of conversion and inspection of checkpoints."""
