"""Heads of models: losses, metrics and predictions."""
