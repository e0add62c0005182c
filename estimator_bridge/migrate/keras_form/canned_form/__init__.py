"""The `keras.Model` that a canned estimator becomes."""
