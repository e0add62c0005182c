"""Compares two recordings, and recognises the causes of differences; numpy alone."""
