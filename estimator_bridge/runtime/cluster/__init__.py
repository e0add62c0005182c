"""Handles a cluster's tasks: compares their software, ends them, and watches for lost tasks."""
