"""Runs the loops of training, evaluation and prediction in sessions."""
