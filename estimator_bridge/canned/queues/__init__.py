"""Input functions that feed rows from memory through queues in the graph."""
