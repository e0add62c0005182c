"""Estimators that include their model, with their heads and input functions."""
