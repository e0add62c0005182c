"""Converts Keras models to estimators."""
