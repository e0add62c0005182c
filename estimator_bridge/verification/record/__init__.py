"""Runs a program on one side of a comparison, and records its values."""
