"""The estimators, and where they run."""
