"""Runs legacy models: reads their input, builds steps, runs sessions and saves checkpoints."""
