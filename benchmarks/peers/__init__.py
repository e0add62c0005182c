"""Other systems on the same workloads, each a process in an environment of its own."""
