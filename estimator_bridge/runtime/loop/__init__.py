"""Runs sessions, and in them the loops of training, evaluation and prediction."""
