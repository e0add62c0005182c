"""Keras models as estimators."""
