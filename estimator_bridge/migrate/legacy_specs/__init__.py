"""Translates legacy specs to objects of TensorFlow 2."""
