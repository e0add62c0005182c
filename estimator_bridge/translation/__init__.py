"""Reads legacy specs, and translates them to the engine's."""
