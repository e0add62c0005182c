"""The `keras.Model` that replaces a model_fn."""
