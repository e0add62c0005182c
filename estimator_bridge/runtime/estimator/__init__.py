"""Defines the estimators, and the cores and hosts on which they run."""
