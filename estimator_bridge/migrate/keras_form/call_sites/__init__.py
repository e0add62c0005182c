"""The calls of an estimator and of what it is given, and those that replace them."""
