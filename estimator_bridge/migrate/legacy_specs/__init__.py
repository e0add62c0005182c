"""Translates a legacy spec to the objects of TensorFlow 2."""
