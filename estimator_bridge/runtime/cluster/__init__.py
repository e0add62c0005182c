"""The tasks of a cluster: their software, how they end, and the chief's watchdog."""
