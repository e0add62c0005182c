"""The `keras.Model` that a model_fn becomes."""
