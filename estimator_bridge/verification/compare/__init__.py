"""Compares two recordings, and recognises the causes of differences. Needs only NumPy."""
