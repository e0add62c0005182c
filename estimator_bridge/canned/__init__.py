"""Canned estimators, which include a model, and the heads and input functions for them."""
