"""Canned estimators (estimators that include a model), and heads and input functions for them."""
