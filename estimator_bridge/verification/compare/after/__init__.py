"""Comparisons of evaluations, predictions and exports, which follow a training."""
