"""The tf2 form: a program that trains in TensorFlow 2 without the estimator."""
