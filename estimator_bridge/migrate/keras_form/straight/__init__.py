"""Simplifies a TensorFlow 1 program so that the rules can read it."""
