"""Measures the engine's speed: workloads, the systems to compare with, and commands."""
