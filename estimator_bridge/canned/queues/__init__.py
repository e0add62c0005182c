"""Input functions that feed rows in memory through queues of the graph."""
