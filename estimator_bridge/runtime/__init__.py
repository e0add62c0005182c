"""Runs legacy models: reads inputs, builds steps, runs sessions, saves checkpoints."""
