"""Runs legacy programs: puts the bridge where stock's names are, and starts the script."""
