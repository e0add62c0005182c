"""Compares two recordings, and recognises the causes of differences; needs numpy only."""
