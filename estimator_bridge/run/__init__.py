"""Runs legacy programs: makes stock's names lead to the bridge, and starts the script."""
