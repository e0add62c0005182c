"""Reads legacy specs, and translates them to specs of the engine."""
