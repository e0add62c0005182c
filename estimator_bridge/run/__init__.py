"""Runs legacy programs: replaces stock's names by the bridge's, and starts the script."""
