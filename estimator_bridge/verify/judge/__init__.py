"""Compares two recordings, and recognises what made them differ; numpy alone."""
