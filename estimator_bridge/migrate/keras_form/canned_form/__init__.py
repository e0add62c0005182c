"""The `keras.Model` that replaces a canned estimator."""
