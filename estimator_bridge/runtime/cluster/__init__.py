"""Handles the tasks of a cluster: compares software, ends tasks, and watches for lost ones."""
