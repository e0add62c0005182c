"""The TPU driver: first-generation embedding hardware, by TensorFlow's TPU ops."""
