"""A reduced program of TensorFlow 1."""
