"""The tasks of a cluster: their software, how they end, and a watchdog for the chief."""
