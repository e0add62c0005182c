"""Reduced programs of TensorFlow 1, which make the calls of public ones, each in a folder."""
