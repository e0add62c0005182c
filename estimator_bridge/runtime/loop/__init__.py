"""Runs the sessions and loops of training, evaluation and prediction."""
