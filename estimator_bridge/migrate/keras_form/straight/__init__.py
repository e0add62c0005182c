"""A program of TensorFlow 1 without detours, which the rules read."""
