"""The estimators, and the cores and hosts they run on."""
