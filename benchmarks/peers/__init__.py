"""Runs other systems on the same workloads, each in its own process and environment."""
