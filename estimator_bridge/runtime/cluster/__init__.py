"""The tasks of a cluster: their software, the end of each, and a watchdog over the others."""
