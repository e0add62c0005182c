"""A legacy spec as the objects of TensorFlow 2."""
