"""Runs legacy programs: makes them import the bridge instead of stock, and starts the script."""
